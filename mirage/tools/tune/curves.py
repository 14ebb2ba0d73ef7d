"""Compute time of a decode step over its batch, and the time to load all layers (Fig. 5b)."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.profiles import Hardware
from mirage.simulate.roofline import Roofline
from mirage.tools.explain.arithmetic import Subject, layer_compute_s

LARGEST_BATCH = 256


@dataclass(frozen=True)
class Curve:
    """Times of one model alone on the device, in milliseconds."""

    name: str
    batches: tuple[float, ...]
    compute_ms: tuple[float, ...]
    load_ms: float
    """Milliseconds to load all its layers."""


def curve(subject: Subject, hardware: Hardware) -> Curve:
    """Curve over batches of requests with the subject's context, from one request to the most that
    its engine runs; a most below 2 counts as 2, and one above `LARGEST_BATCH` as that.
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
