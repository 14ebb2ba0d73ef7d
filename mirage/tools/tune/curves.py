"""Compute time of a decode step over its batch, and the time to load all layers (Fig. 5b)."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.profiles import Hardware
from mirage.simulate.roofline import Roofline
from mirage.tools.explain.arithmetic import Subject, layer_compute_s

LARGEST_BATCH = 256


@dataclass(frozen=True)
class Curve:
    """Predicted times of one tenant's model, in milliseconds, while no other model uses the device:
    a decode step at each batch size, and the load of all layers.
    """

    name: str
    """Name of the tenant."""
    batches: tuple[float, ...]
    """Batch sizes, in requests, ascending."""
    compute_ms: tuple[float, ...]
    """Compute time of a decode step at each of `batches`, without any wait for layers."""
    load_ms: float
    """Time to load all layers from host memory over the link."""


def curve(subject: Subject, hardware: Hardware) -> Curve:
    """Curve of `subject` on `hardware`, by the roofline. Its batches go from one request to the
    most that the subject's engine runs, but at least to 2 and at most to `LARGEST_BATCH`; each
    request has the subject's context.
    """
    most = max(2, min(LARGEST_BATCH, subject.most_requests))
    batches = sorted({1, most, *(2**power for power in range(1, 9) if 2**power < most)})
    roofline = Roofline(subject.model, hardware)
    layers = subject.model.layers
    steps = [layer_compute_s(roofline, batch, subject.context) * layers for batch in batches]
    load_s = subject.shape.layer_bytes / (hardware.link_gb_s.value * 1e9)
    return Curve(
        name=subject.tenant.name,
        batches=tuple(map(float, batches)),
        compute_ms=tuple(step * 1e3 for step in steps),
        load_ms=load_s * layers * 1e3,
    )
