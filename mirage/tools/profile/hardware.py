"""The hardware file: every figure with the way in which it was measured, the machine, and the date.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from mirage.profiles import UNSEEN, Hardware
from mirage.tools.profile.serving import Extra
from mirage.tools.profile.spread import Spread
from mirage.tools.profile.understanding import Measured
from mirage.units import GIB, MIB

LARGEST = 100 * UNSEEN
"""Figure that is written for a bound that limited no measured step, in GB/s or TFLOP/s."""

Figures = dict[str, tuple[float, str]]


@dataclass(frozen=True)
class ProfileProvenance:
    """Origin of the figures in a hardware file: the program that measured them, the machine, the
    date, the path of the configuration, and the bytes of the device's memory and of a page.
    """

    program: str
    """Name of the program, as ``mirage profile``."""
    machine: str
    date: str
    config: str
    """Path of the configuration."""
    memory_bytes: int
    page_bytes: int


def figures(measured: Measured, of: ProfileProvenance, extra: Extra) -> Figures:
    """Value and source of each field of `Hardware`. `extra` is the time that serving adds to a
    step.
    """
    where = f"measured by {of.program} on {of.machine}, {of.date}"
    fitted, error = measured.fitted, f"mean error {100 * measured.fitted.error:.0f} %"
    bound = f"{where}: fitted to timed steps, {error}"
    added = f"{extra.step_s * 1e3:.3g} ms that serving adds" if any(extra) else "serving left out"
    loads = "copies by size" if measured.load is None else f"loads of a layer, {_of(measured.load)}"
    ratio = measured.mixed_bytes_per_s / measured.link_bytes_per_s
    return {
        "memory_gib": (of.memory_bytes / GIB, f"{of.config}: device.memory"),
        "bandwidth_gb_s": _seen(fitted.bytes_per_s / 1e9, bound, "memory traffic"),
        "bandwidth_efficiency": (1.0, "inside the measured bandwidth"),
        "compute_tflop_s": _seen(fitted.flop_per_s / 1e12, bound, "arithmetic"),
        "compute_efficiency": (1.0, "inside the measured compute"),
        "link_gb_s": (measured.link_bytes_per_s / 1e9, f"{where}: {loads}"),
        "link_mixed_gb_s": (
            measured.mixed_bytes_per_s / 1e9,
            f"{where}: {100 * ratio:.0f} % of one way, as copies both ways at once were",
        ),
        "step_overhead_ms": ((fitted.overhead_s + extra.step_s) * 1e3, f"{bound}; {added}"),
        "sequence_overhead_us": ((fitted.sequence_s + extra.token_s) * 1e6, bound),
        "reserved_mb": (measured.reserved_bytes / 1e6, _reserved(measured, where)),
        "page_mib": (of.page_bytes / MIB, f"{of.config}: the page that mirage serve takes for it"),
        "apply_ms": (measured.apply.median * 1e3, f"{where}: allotments, {_of(measured.apply)}"),
        "message_ms": (
            measured.message.median * 1e3,
            f"{where}: half of a question and its answer, {_of(measured.message)}",
        ),
    }


def document(title: str, known: Mapping[str, tuple[float, str]], comment: str) -> str:
    """Text of the YAML file. Raises pydantic's `ValidationError` if a figure is impossible."""
    raw: dict[str, object] = {"title": title}
    raw |= {
        name: {"value": float(f"{value:.10g}"), "source": source}
        for name, (value, source) in known.items()
    }
    Hardware.model_validate(raw)
    text = yaml.safe_dump(raw, sort_keys=False, width=1000, default_flow_style=None)
    return f"# {comment}\n\n{text}"


def _seen(rate: float, source: str, what: str) -> tuple[float, str]:
    if rate < UNSEEN:
        return rate, source
    return LARGEST, f"{source}; no step was bound by {what}, so it is taken to be without limit"


def _of(values: Spread) -> str:
    low, high = (f"{value * 1e3:.3g}" for value in (values.low, values.high))
    return f"median of {values.count}, quartiles {low} to {high} ms"


def _reserved(measured: Measured, where: str) -> str:
    if not measured.reserved_bytes:
        return "engines on a host share nothing but the machine"
    return f"{where}: memory of the GPU in use beside parameters and KV cache"
