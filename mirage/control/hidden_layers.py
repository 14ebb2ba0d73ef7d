"""Number of a tenant's layers that hide behind its decode steps, and the slots for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mirage.control.hiding import best_slots, most_hidden_at_best
from mirage.control.rules import Rules
from mirage.control.step_times import nested_step
from mirage.control.targets import most_remapped
from mirage.control.tenant_state import TenantSnapshot

CLEARLY = 0.98
"""Part of the present step time below which another number of slots is worth the copies."""


def hidden_layers(t: TenantSnapshot, t_compute: float, rules: Rules, streams: int = 1) -> int:
    """Return the number of layers that an active tenant may give: those whose loads fit behind its
    decode compute.

    Without `rules.decode_cap` these are all that it may ever give. While T_T or T_c is unknown it
    is one layer, the least that lets them be measured. T_T was measured while one tenant streamed;
    each of `streams` tenants that stream at the same time has its part of the link.
    """
    return hidden_each(t, most_remapped(t.tenant, t.shape, rules), [t_compute], rules, streams)[0]


def hidden_each(
    t: TenantSnapshot, ever: int, computes: Sequence[float], rules: Rules, streams: int
) -> list[int]:
    """Return `hidden_layers` for each T_c in `computes`, of a tenant that may give `ever`
    layers."""
    if ever == 0 or not rules.decode_cap:
        return [ever] * len(computes)
    t_load, least = t.report.layer_load_s * streams, min(1, ever)
    if t_load <= 0:
        return [least] * len(computes)
    n, most = t.shape.layers, _streamable(t)
    return [
        min(ever, most_hidden_at_best(n, t_load, t_compute, most)) if t_compute > 0 else least
        for t_compute in computes
    ]


def slots(t: TenantSnapshot, remapped: int, rules: Rules, streams: int) -> int:
    """Return the number of slots for `remapped` layers; 0 for no layers.

    While `remapped` stays as allotted, the number of slots stays too, unless another one makes a
    clearly shorter step.
    """
    if remapped == 0:
        return 0
    fitting = [b for b in _slot_counts(rules) if remapped + b <= _streamable(t)] or [1]
    sent = (
        t.allotment.stream_slots if t.allotment and t.allotment.layers_remapped == remapped else 0
    )
    times = t.shape.layers, t.report.layer_load_s * streams, t.report.layer_compute_s
    if min(times) <= 0:
        return sent if sent in fitting else max(fitting)
    best = best_slots(remapped, *times, fitting)
    if best == sent or sent not in fitting:
        return best
    better = nested_step(remapped, best, *times) < CLEARLY * nested_step(remapped, sent, *times)
    return best if better else sent


def _slot_counts(rules: Rules) -> tuple[int, ...]:
    return (1, 2) if rules.stream_slots == "dynamic" else (rules.stream_slots,)


def _streamable(t: TenantSnapshot) -> int:
    return t.shape.layers - t.tenant.floor_layers
