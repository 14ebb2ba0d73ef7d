"""Ways to run steps: eager, with CUDA graphs, or compiled too; see
`mirage.config.DeviceSection`.
"""

EAGERLY, GRAPHS, COMPILED = "eagerly", "with graphs", "compiled"
ON_GPU = {
    EAGERLY: {"graphs": False, "compile": False},
    GRAPHS: {"graphs": True, "compile": False},
    COMPILED: {"graphs": True, "compile": True},
}
"""Keys of the configuration's section `device`, by way."""
ON_HOST = {EAGERLY: {"compile": False}, COMPILED: {"compile": True}}
