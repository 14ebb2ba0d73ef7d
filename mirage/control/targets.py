"""Bytes of an allotment, and the allotment that a tenant's share of the device pays for."""

from __future__ import annotations

from msgspec.structs import replace

from mirage import config
from mirage.control.engine.counted import CountedMemory
from mirage.control.engine.way import Way
from mirage.control.rules import Rules
from mirage.geometry import asleep_bytes, footprint
from mirage.protocol import Allotment, LentInTurns, ModelShape
from scheduler.tenants import Tenant


class DoesNotFitError(ValueError):
    """Error: a model's parameters and least KV cache are larger than its tenant's share."""


def unnumbered(
    shape: ModelShape,
    remapped: int,
    slots: int,
    kv_extents: int,
    open_extents: int | None = None,
    *,
    recall: bool = False,
    experts: int = 0,
    lent: LentInTurns = "nothing",
) -> Allotment:
    """Return an allotment without a number (revision 0) that is not sent yet.

    Its grant is the bytes of all its parts. The arguments after `shape` are its fields, and have
    the meaning of those of `Allotment`.
    """
    nbytes = footprint(shape, remapped, kv_extents, experts)
    return Allotment(0, remapped, slots, kv_extents, nbytes, open_extents, recall, experts, lent)


def is_sent(sent: Allotment, target: Allotment) -> bool:
    """True if `sent` equals `target`, revisions aside."""
    return replace(sent, revision=target.revision) == target


def entitled(tenant: config.TenantSection) -> Tenant:
    """Return the rights of a configured tenant that decisions depend on."""
    return Tenant(
        tenant.name,
        tenant.percent,
        tenant.priority,
        tenant.floor_layers,
        tenant.max_percent,
        tenant.max_cost_ms,
    )


def base(tenant: Tenant, shape: ModelShape, device_bytes: int) -> Allotment:
    """Return the allotment of the tenant's share with all its layers resident; the rest is KV
    memory.

    Raise `DoesNotFitError` if the rest is less than `shape.min_extents`.
    """
    return unnumbered(shape, 0, 0, share_extents(tenant, shape, device_bytes))


def share_extents(tenant: Tenant, shape: ModelShape, device_bytes: int) -> int:
    """Return the KV extents of `base`. Raise `DoesNotFitError` if they are less than
    `shape.min_extents`."""
    share_bytes = tenant.share_bytes(device_bytes)
    extents = (share_bytes - footprint(shape, 0, 0)) // shape.extent_bytes
    if extents < shape.min_extents:
        needed, model = footprint(shape, 0, shape.min_extents), footprint(shape, 0, 0)
        raise DoesNotFitError(
            f"tenant {tenant.name!r} needs {needed} bytes (model {model}, KV for one "
            f"request of full length {shape.min_extents * shape.extent_bytes}) and its share of "
            f"{tenant.share:g} % is {share_bytes} bytes: raise its share or the device's memory, "
            "or lower max_model_len"
        )
    return min(extents, shape.max_extents)


def most_remapped(tenant: Tenant, shape: ModelShape, rules: Rules) -> int:
    """Return the most layers that may ever be given away; 0 for a model whose layers stay.

    They are at most `max_percent` per cent of all layers (the tenant's own limit, else that of
    `rules`). Of the others, `tenant.floor_layers` have to stay resident in addition to the slots
    (`most_slots`): if nearly all layers were streamed, no resident layer would compute while the
    next one is loaded.
    """
    percent = rules.max_percent if tenant.max_percent is None else tenant.max_percent
    by_percent = int(percent * shape.layers / 100 + 1e-9)
    beside_floor = shape.layers - tenant.floor_layers - most_slots(rules)
    return max(0, min(shape.movable_layers, by_percent, beside_floor))


def least(tenant: Tenant, shape: ModelShape, rules: Rules) -> Allotment:
    """Return the smallest allotment with which an engine serves: all layers away that may be, and
    KV for one request."""
    remapped = most_remapped(tenant, shape, rules)
    return unnumbered(shape, remapped, most_slots(rules) if remapped else 0, shape.min_extents)


def asleep(shape: ModelShape) -> Allotment:
    """Return the allotment of a sleeping engine: only the memory that it cannot give."""
    remapped = shape.layers if shape.movable_layers else 0
    extents = 1 if shape.max_extents else 0
    return Allotment(0, remapped, 0, extents, asleep_bytes(shape), asleep=True)


def most_slots(rules: Rules) -> int:
    """Return the most slots that streamed layers of one model may share."""
    return 1 if rules.stream_slots == 1 else 2


def most_experts(tenant: Tenant, shape: ModelShape, rules: Rules) -> int:
    """Return the most experts of each layer that may ever be given away; 0 if `rules.experts` is
    False or no layer may be given."""
    return shape.movable_experts if rules.experts and most_remapped(tenant, shape, rules) else 0


def toward(shape: ModelShape, now: Allotment, to: Allotment, limit: int) -> Allotment:
    """Return the allotment from `now` towards `to` that `limit` bytes allow: KV memory first, then
    layers or experts. If all layers are away in `now`, as for an engine that wakes, layers come
    first.

    `now` must fit into `limit`. The result is where the engine's own `Way` leads, if nothing is in
    use.
    """
    if to.grant_bytes <= limit:
        return to
    held = CountedMemory(
        shape, now.layers_remapped, now.stream_slots, now.experts, now.kv_extents, limit
    )
    way = Way(held)
    for _ in range(2 if held.absent else 1):  # layers come back in the first, KV in the second
        for move in way.moves_to(to):
            held.make(move)
    given = held.layers_remapped, held.stream_slots, held.extents
    return unnumbered(
        shape, *given, to.open_extents, recall=to.recall, experts=held.experts, lent=to.lent
    )


def is_legal(
    sent: Allotment, tenant: Tenant, shape: ModelShape, policy: config.Policy, rules: Rules
) -> bool:
    """True if the policy and the tenant's limits allow an allotment, and its grant is the bytes of
    its parts.
    """
    mirage = policy is config.Policy.MIRAGE
    most = most_remapped(tenant, shape, rules) if mirage else 0
    experts = most_experts(tenant, shape, rules) if mirage else 0
    away = sent.layers_remapped
    return (
        sent.grant_bytes == footprint(shape, away, sent.kv_extents, sent.experts)
        and 0 <= sent.experts <= experts
        and not (away and sent.experts)
        and 0 <= away <= most
        and (away == 0 or away + sent.stream_slots <= shape.layers - tenant.floor_layers)
        and shape.min_extents <= sent.kv_extents <= shape.max_extents
    )
