"""Ways to run steps: eagerly, as graphs, or compiled as well; see `mirage.config.DeviceSection`."""

EAGERLY, GRAPHS, COMPILED = "eagerly", "with graphs", "compiled"
ON_GPU = {
    EAGERLY: {"graphs": False, "compile": False},
    GRAPHS: {"graphs": True, "compile": False},
    COMPILED: {"graphs": True, "compile": True},
}
"""The part of the configuration that says so."""
ON_HOST = {EAGERLY: {"compile": False}, COMPILED: {"compile": True}}
