"""Passes of a plan (Algorithm 1), in their order: each has a reason to move memory. Pure.

A pass works on the rows of all tenants before the next begins. A pass that serves demand looks at
higher priorities first, and within one priority is fair in bytes (max-min fairness). It takes free
bytes, which include all KV that earlier passes left idle; then layers of idle tenants in victim
order, those already away before more; then those of the asking tenant itself, as many as hide
behind its decode steps; for growth, where the alternative is to preempt, also such layers of the
other active tenants; and cached prefixes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

from mirage.control.moves import Kind, Reason
from mirage.control.rows import TenantRow
from mirage.control.water_filling import Amount, Fill, missing


class Pass(NamedTuple):
    """Pass over all rows, and the reason for the moves that it makes."""

    reason: Reason
    run: Callable[[Fill], None]


class Level(NamedTuple):
    """Level up to which a pass serves, in extents, and the units (layers or experts) that may be
    away for it."""

    level: Amount
    idle: Amount
    """Units that may be away of a tenant without work."""
    own: Amount
    """Units that may be away of the asking tenant."""
    others: Amount
    """Units that may be away of any active tenant, used last."""


class Choices(NamedTuple):
    """Choices by which one plan differs from another."""

    recalls: bool = False
    """True if running requests may be recalled, which is the case under spatial sharing."""
    wakes: bool = False
    """True if a model that was told to wake, or whose engine has started hollow, waits for its
    first memory."""
    keeps_prefixes: bool = False
    """True if cached prefixes may be worth more than layers."""
    lend_percent: float | None = None
    """Per cent of all KV memory that can be lent beyond shares, free or lent already, up to which
    waiting requests get some, if layers are given for running requests only; None if layers are
    given for waiting ones too, or no layers at all."""
    reversion: bool = True
    """True if layers that no demand needs come back."""


@cache
def passes(choices: Choices) -> tuple[Pass, ...]:
    """Return the passes that make a plan, in their order."""
    return tuple(_passes(choices))


def _passes(choices: Choices) -> Iterator[Pass]:
    yield Pass(Reason.RUNNING, keep_running)
    if choices.recalls and choices.wakes:
        yield Pass(Reason.WAKE, make_room)
    if choices.recalls:
        yield Pass(Reason.RECALL, recall)
    if choices.keeps_prefixes:
        yield Pass(Reason.PREFIXES, keep_prefixes)
    yield Pass(Reason.GROWTH, partial(serve, Level(_growth_within, lends, hidden, hidden_or_out)))
    yield Pass(Reason.GROWTH_BEYOND, partial(serve, Level(_growth, lends, hidden, hidden)))
    if choices.lend_percent is None:
        yield Pass(Reason.ADMISSION, partial(serve, Level(_admission_within, lends, hidden, none)))
        yield Pass(Reason.ADMISSION_BEYOND, partial(serve, Level(_admission, lends, hidden, none)))
    yield Pass(Reason.COOLDOWN, partial(serve, Level(_cooldown, out, still_hidden, none)))
    yield Pass(Reason.RESTORE, restore) if choices.reversion else Pass(Reason.STAY, stay_away)
    # Of what is free now, and without layers.
    yield Pass(Reason.ADMISSION, partial(serve_free, _admission_within))
    yield Pass(Reason.ADMISSION_BEYOND, partial(lend, choices.lend_percent))
    yield Pass(Reason.SHARE, share_out)


# -- amounts ----------------------------------------------------------------------------


def _growth_within(row: TenantRow) -> int:
    return min(row.growth, row.share)


def _growth(row: TenantRow) -> int:
    return row.growth


def _admission_within(row: TenantRow) -> int:
    return min(row.admission, row.share)


def _admission(row: TenantRow) -> int:
    return row.admission


def _cooldown(row: TenantRow) -> int:
    return row.cooldown


def _cached(row: TenantRow) -> int:
    return row.cached


def _share(row: TenantRow) -> int:
    return row.share


def none(_: TenantRow) -> int:
    """Return 0: the row gives no layer or expert."""
    return 0


def out(row: TenantRow) -> int:
    """Return the number of the row's units (layers, or experts of each layer) that are away."""
    return row.out


def most(row: TenantRow) -> int:
    """Return the number of units that may ever be away, or of those that are away if these are
    more."""
    return max(row.most, row.out)


def lends(row: TenantRow) -> int:
    """Return the number of units that the row's tenant lends while it is idle."""
    return row.lends


def lends_or_out(row: TenantRow) -> int:
    """Return the number of units that the row's tenant lends while it is idle, or of those that are
    away if these are more."""
    return max(row.lends, row.out)


def hidden(row: TenantRow) -> int:
    """Return the number of units that may be away while all loads hide behind the tenant's decode
    steps."""
    return row.hidden


def still_hidden(row: TenantRow) -> int:
    """Return the number of units (layers or experts) that are away now and whose loads have been
    hidden by decode steps lately."""
    return min(row.out, row.lately_hidden)


def hidden_or_out(row: TenantRow) -> int:
    """Return the number of units that may be away while all loads hide, or of those that are away
    if these are more; for a tenant for which memory of others was recalled, only the former."""
    return row.hidden if row.recalls else max(row.hidden, row.out)


# -- passes -----------------------------------------------------------------------------


def keep_running(fill: Fill) -> None:
    """Cover the extents that running requests use, before all else and from any source.

    After free bytes, idle tenants give the layers that they lend. Then a tenant above its share
    gives its own layers that hide. Only then do idle tenants give more than they lend, or layers of
    active tenants stay away that do not hide. Otherwise growth that a tenant's own layers pay for
    would be paid by an idle tenant's layers in the next plan, and its own layers would be free to
    pay for more growth.
    """
    for row in fill.rows:
        fill.give(row, min(row.running, row.share))
    for row in fill.rows:
        if row.running > row.share:
            fill.give(row, row.running - row.share)
    fill.gather(fill.idle, lends_or_out, 0)
    fill.gather([row for row in fill.active if row.running > row.share], hidden, 0)
    fill.gather(fill.idle, most, 0)
    fill.gather(fill.active, hidden_or_out, 0)


def make_room(fill: Fill) -> None:
    """Take KV memory of running requests beyond their tenants' shares, for a model that wakes.

    It was woken because the shares of all awake tenants fit. Otherwise its waiting requests would
    wait until the last request that uses its memory has ended.
    """
    fill.call_in(fill.rows, 0)


def recall(fill: Fill) -> None:
    """Take KV memory of running requests beyond their tenants' shares, for layers of an active
    tenant, such as one that woke.

    This is done only if its decode could not bear to be without these layers, and then for all
    layers away that do not hide. Computing a few prompts anew takes a fraction of a second; the
    last of the requests that use the memory may run for minutes.
    """
    for row in fill.active:
        if row.given <= row.bears:
            continue
        row.recalls = True
        felt = row.given - row.hidden
        fill.call_in([r for r in fill.rows if r is not row], felt * row.unit_bytes)
        fill.bring_back(row, felt)


def keep_prefixes(fill: Fill) -> None:
    """Give free memory to tenants for the cached prefixes that they hold there, if these are worth
    more than layers."""
    fill.aim(_cached)
    fill.share_out(fill.rows, Kind.PREFIXES)


def serve(demand: Level, fill: Fill) -> None:
    """Serve demand up to a level from free bytes, then layers, then cached prefixes."""
    _serve_each(demand.level, partial(_with_layers, demand), fill)


def serve_free(level: Amount, fill: Fill) -> None:
    """Serve demand up to a level from free bytes, then cached prefixes."""
    _serve_each(level, Fill.share_out, fill)


def _serve_each(
    level: Amount, gives: Callable[[Fill, Sequence[TenantRow]], None], fill: Fill
) -> None:
    """Give tenants below `level` what `gives` brings, then memory of cached prefixes; higher
    priorities first."""
    fill.aim(level)
    for row in fill.rows:
        if row.kept:
            fill.use_prefixes(row)
    before = fill.brought
    for asking in fill.asking():
        gives(fill, asking)
        if (wanted := missing(asking)) > fill.free:
            fill.take_prefixes(wanted)
            fill.share_out(asking)
    if fill.brought > before:
        fill.share_out(fill.rows)  # the bytes that whole layers brought too many


def _with_layers(demand: Level, fill: Fill, asking: Sequence[TenantRow]) -> None:
    """Give tenants of one priority free bytes and layers: of idle tenants, then each tenant's own,
    then of active tenants. Bytes are shared out again only if more came."""

    def take(donors: Sequence[TenantRow], limit: Amount, takers: Sequence[TenantRow]) -> None:
        before = fill.brought
        if donors and (wanted := missing(takers)):
            fill.gather(donors, limit, fill.usable(wanted))
        if fill.brought > before:
            fill.share_out(takers)

    fill.gather(fill.idle, demand.idle, fill.usable(missing(asking)))
    fill.share_out(asking)
    for row in asking:
        if row.kv < row.wanted:
            take([row], demand.own, [row])
    take(fill.active, demand.others, asking)


def restore(fill: Fill) -> None:
    """Bring layers back into free bytes that no demand took: first the layers that only this plan
    gives away, then those that were away before it.

    Active tenants come first, then idle ones in reverse victim order: the paper's dynamic
    reversion.
    """
    for bound in (out, none):
        for row in [*reversed(fill.active), *reversed(fill.idle)]:
            fill.bring_back(row, row.given - bound(row))


def stay_away(fill: Fill) -> None:
    """Keep layers away that are away: there is no reversion."""
    for row in fill.rows:
        fill.give_away(row, max(0, row.out - row.given))


def lend(percent: float | None, fill: Fill) -> None:
    """Give waiting requests free KV memory beyond their tenants' shares: `percent` of what can be
    lent; None for all of it.

    The percentage is of free and lent bytes together, not of free bytes alone: otherwise each plan
    would lend a part of what the plan before it kept free.
    """
    kept = 0
    if percent is not None:
        lent = sum(row.beyond_share_bytes for row in fill.rows)
        kept = max(0, min(fill.free, int((fill.free + lent) * (1 - percent / 100))))
    fill.free -= kept
    serve_free(_admission, fill)
    fill.free += kept


def share_out(fill: Fill) -> None:
    """Fill each tenant's KV up to its share from the bytes that are left."""
    fill.aim(_share)
    fill.share_out(fill.rows)


def hold_shares(fill: Fill) -> None:
    """Give each tenant exactly its share."""
    for row in fill.rows:
        fill.give(row, row.share)
