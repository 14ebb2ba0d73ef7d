"""Whether a tenant gives layers or experts, and how many of them: by what `worth` says. Pure."""

from __future__ import annotations

from functools import partial

from mirage.control.tenant_state import TenantSnapshot
from mirage.control.water_filling import Ask
from mirage.control.worth import COLD, STILL_COLD, cold_experts
from mirage.geometry import experts_gain
from mirage.units import ceil_div

STAYS = 2.0
"""What experts bring counts so many times where some are away already, against going to and fro."""
ANOTHER_STEP = 1.0
"""Part of a step by which it is lengthened before running requests of others make room."""


def experts_out(t: TenantSnapshot) -> int:
    """Experts of each layer that are given away, or told to be."""
    return max(t.report.experts, t.allotment.experts if t.allotment else 0)


def giving_experts(t: TenantSnapshot, ask: Ask, most: int) -> Ask:
    """`ask` with experts in the place of layers, if the tenant runs and they bring more.

    `most`: experts of each layer that may be away. Those that are away are given up for layers only
    where these bring twice as much: going from one to the other copies a good part of the model.
    What is away of one kind counts as so much of the other, since others may sit on that memory;
    where that is more than there can be, or than hides while the tenant runs, it stays as it is.
    """
    gain = experts_gain(t.shape)
    if not (most and gain):
        return ask
    out = experts_out(t)
    away = max(out * gain, ask.out * ask.layer_bytes)
    as_layers, as_experts = ceil_div(away, ask.layer_bytes), ceil_div(away, gain)
    worth = partial(_worth, t, gain, most)
    cold = max(worth(COLD), min(out, worth(STILL_COLD))) if t.active else 0
    better = cold * gain * (STAYS if out else 1.0) > ask.hidden * ask.layer_bytes
    fitting = ask.hidden if t.active and out else ask.most
    if as_experts > most or (as_layers <= fitting and not better):
        return ask._replace(out=as_layers)
    return ask._replace(
        experts=True,
        layer_bytes=gain,
        most=most,
        lends=0 if t.active else as_experts,
        surely_hidden=0,
        hidden=cold,
        lately_hidden=cold,
        bears=max(cold, worth(ANOTHER_STEP)),
        out=as_experts,
    )


def _worth(t: TenantSnapshot, gain: int, most: int, lengthening: float) -> int:
    report = t.report
    given = experts_out(t) * gain
    return cold_experts(
        report.expert_routed,
        load_s=report.expert_load_s,
        step_s=t.shape.layers * report.layer_compute_s,
        gain_bytes=gain,
        # Without what experts pay for already: else what they brought would make them worth less.
        kv_bytes=max(0, report.kv_extents * t.shape.extent_bytes - given),
        most=most,
        lengthening=lengthening,
    )
