"""Choice between layers and experts of a tenant, and how many of them, by price. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from mirage.control.prices import (
    Batches,
    KvSource,
    Mixture,
    Price,
    active_layers,
    best,
    cold_experts,
    worth_giving,
)
from mirage.control.rows import TenantRow
from mirage.control.spilling import TurnLengths, instead, layers_of
from mirage.control.tenant_state import TenantSnapshot
from mirage.geometry import experts_gain
from mirage.units import ceil_div

COLD = 0.1
"""Part of a decode step by which loads of experts may lengthen it."""
STILL_COLD = 0.15
"""Part of a decode step by which loads may lengthen it for experts that are already away; higher
than `COLD`, because measurements vary."""
ANOTHER_STEP = 1.0
"""Part of a step by which loads may lengthen it before running requests of others are preempted to
bring the experts back."""
SPAN_S = 10.0
"""Seconds for which a model is assumed to keep giving either layers or experts; one change between
them is paid for in these seconds."""
CLEARLY = 0.02
"""Part of `SPAN_S` that a change between layers and experts costs in addition to its copies,
because measurements vary."""

NOTHING = Price(KvSource.LAYERS, 0.0, 0)
"""Price of giving nothing."""


def experts_out(t: TenantSnapshot) -> int:
    """Return the number of experts of each layer that are given away, or that the engine was told
    to give."""
    return max(t.report.experts, t.allotment.experts if t.allotment else 0)


def giving_experts(
    t: TenantSnapshot, row: TenantRow, most: int, turns: TurnLengths | None = None
) -> TenantRow:
    """Return the row with experts as the units that its tenant gives, if experts are cheaper; else
    with layers.

    `most` is the number of experts of each layer that may be away. `turns` is None if tenants run
    at once (spatial sharing); it bounds the experts that may be away before others are preempted
    (`_bears`). A change from one kind to the other copies what returns. Layers and experts that are
    away already are counted in the kind of the result (`out`), because other tenants may use that
    memory. The other kind is not chosen if that would be more than may be away, or more layers than
    hide while the tenant runs. An idle tenant gives layers, unless only experts can stand for what
    is away.
    """
    gain = experts_gain(t.shape)
    if not (most and gain):
        return row
    out = experts_out(t)
    away = max(out * gain, row.out * row.unit_bytes)
    as_layers, as_experts = ceil_div(away, row.unit_bytes), ceil_div(away, gain)
    cold = list(_cold(t, most)) if t.active else []
    fitting = row.hidden if t.active and out else row.most
    experts_are_best = _chosen(t, [_layers(t, row.hidden), *cold]) > 0
    if as_experts > most or (as_layers <= fitting and not experts_are_best):
        return replace(row, out=as_layers)
    unfelt = _chosen(t, [NOTHING, *cold])
    return replace(
        row,
        gives_experts=True,
        unit_bytes=gain,
        most=most,
        lends=0 if t.active else as_experts,
        surely_hidden=0,
        hidden=unfelt,
        lately_hidden=unfelt,
        bears=max(unfelt, _bears(t, unfelt, most, turns)),
        out=as_experts,
    )


def _mixture(t: TenantSnapshot) -> Mixture | None:
    """Return the tenant's experts for a price; None while its step times or routing are unknown."""
    report, shape = t.report, t.shape
    compute_s = shape.layers * report.layer_compute_s
    if min(report.expert_load_s, compute_s) <= 0 or not report.expert_routed:
        return None
    return Mixture(
        experts_gain(shape), tuple(report.expert_routed), report.expert_load_s, compute_s
    )


def _cold(t: TenantSnapshot, most: int) -> Iterator[Price]:
    """Yield the price of each number of experts of each layer whose loads lengthen a step by the
    part `COLD` at most, or `STILL_COLD` if so many are away already."""
    mixture = _mixture(t)
    if mixture is None:
        return
    out = experts_out(t)
    for given in range(1, min(most, len(mixture.routed) - 1) + 1):
        lengthening = STILL_COLD if given <= out else COLD
        if mixture.step_s(given) <= (1 + lengthening) * mixture.compute_s:
            price = cold_experts(mixture, 0, given, SPAN_S)
            yield _instead_of(price, t.layers_out * t.report.layer_load_s)


def _layers(t: TenantSnapshot, hidden: int) -> Price:
    price = active_layers(layers_of(t), 0, hidden, SPAN_S)
    return _instead_of(price, experts_out(t) * t.shape.expert_layers * t.report.expert_load_s)


def _instead_of(price: Price, returns_s: float) -> Price:
    """Return `price` plus the cost of bringing the other kind back, which takes `returns_s`
    seconds; `returns_s` is 0 if none of it is away."""
    more = returns_s + CLEARLY * SPAN_S if returns_s else 0.0
    return price._replace(seconds=min(SPAN_S, price.seconds + more))


def _chosen(t: TenantSnapshot, ways: list[Price]) -> int:
    """Return the number of experts of the best of `ways`; 0 if the best one gives layers or
    nothing."""
    # Memory that given layers and experts pay for is left out: else, once given, more of them would
    # seem worth less.
    given = experts_out(t) * experts_gain(t.shape) + t.layers_out * t.shape.layer_bytes
    kv_bytes = max(1, t.report.kv_extents * t.shape.extent_bytes - given)
    price = best(ways, Batches(kv_bytes, t.staying_part), SPAN_S)
    if price is None or price.way is not KvSource.EXPERTS:
        return 0
    return round(price.nbytes) // experts_gain(t.shape)


def _bears(t: TenantSnapshot, unfelt: int, most: int, turns: TurnLengths | None) -> int:
    """Return the number of experts of each layer that may be away before requests of other tenants
    are preempted to bring experts back. In `turns` they are priced by the length of a turn; without
    (None), a step may take the part `ANOTHER_STEP` longer."""
    mixture = _mixture(t)
    if mixture is None:
        return 0
    most = min(most, len(mixture.routed) - 1)
    if turns is not None:
        price = partial(cold_experts, mixture, span_s=turns.seconds)
        return worth_giving(price, unfelt, most, instead(t))
    bearable = (1 + ANOTHER_STEP) * mixture.compute_s
    return max(g for g in range(most + 1) if mixture.step_s(g) <= bearable or not g)
