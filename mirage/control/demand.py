"""Demand of an engine for KV memory, by arithmetic over counts of blocks and requests. Pure.

It is computed in blocks and reported in extents (`in_extents`); the controller receives only
extents.
"""

from __future__ import annotations

import msgspec

from mirage.facts import KVGroups
from mirage.protocol import Report
from mirage.units import align_up, ceil_div


class Demand(msgspec.Struct, frozen=True):
    """KV blocks that an engine needs in total; each field includes the one before.

    Demand depends on the blocks in use and the waiting requests, never on the grant. Otherwise an
    engine would want less once it was served, lose that memory to another engine, and want it
    again.
    """

    used: int = 0
    """KV blocks that running requests use."""
    growth: int = 0
    """KV blocks that running requests need now or soon, those in use included."""
    admission: int = 0
    """KV blocks with which the waiting requests can start as well, `growth` included."""


def blocks_ahead(groups: KVGroups, running: int, lookahead_steps: int, headroom_blocks: int) -> int:
    """Return the free blocks that `running` requests should find.

    These are the blocks of `lookahead_steps` decode steps, so that memory arrives before it is
    needed, and `headroom_blocks`. 0 if no request runs.
    """
    return groups.grown(running * lookahead_steps) + headroom_blocks if running else 0


def blocks_soon(groups: KVGroups, running: int, lookahead_steps: int) -> int:
    """Return the blocks that stay free when waiting requests are admitted: those that `running`
    requests need in the first half of `lookahead_steps` steps.

    Half was measured as best: it avoids most of the preemptions that the whole would, and requests
    wait hardly longer. With all that is asked ahead, TTFT P99 was up to 1.6 times as long.
    """
    return groups.grown(running * lookahead_steps, parts=2)


def blocks_later(groups: KVGroups, running: int, lookahead_steps: int) -> int:
    """Return the blocks that stay free when waiting requests are admitted while layers are lent
    under spatial sharing: those that `running` requests need in twice `lookahead_steps` steps.

    To leave all blocks up to `growth_level` free would be up to five times what is asked ahead,
    because by chance a demand lies anywhere between two values of that level.
    """
    return groups.grown(2 * running * lookahead_steps) if running else 0


def growth_level(used_blocks: int, ahead: int) -> int:
    """Return the KV blocks in total with which running requests find `ahead` free ones beside those
    in use.

    The result is rounded up to a multiple of the least power of two that is at least twice `ahead`,
    so that growing requests ask rarely. With `ahead` 0 it is `used_blocks`.
    """
    if not ahead:
        return used_blocks
    step = 1 << (2 * ahead - 1).bit_length()
    return align_up(used_blocks + ahead, step)


def demand(*, used_blocks: int, due_blocks: int, ahead: int, starting: int) -> Demand:
    """Return the demand of an engine at one moment, in KV blocks.

    `due_blocks` are needed immediately, in addition to `used_blocks`, by a running request that
    lacked blocks (`GrowthHold.due`). For `ahead` see `blocks_ahead`, for `starting` see
    `KVGroups.to_start`.
    """
    level = growth_level(used_blocks + due_blocks, ahead)
    return Demand(used_blocks, level, level + starting)


def in_extents(blocks: int, extent_blocks: int) -> int:
    """Return the extents that hold `blocks` blocks and one null block; 0 for no blocks."""
    return ceil_div(blocks + 1, extent_blocks) if blocks else 0


def lacks_growth(report: Report) -> bool:
    """True if running requests want more extents than the engine has, so that it waits for an
    answer."""
    return report.growth_extents > report.kv_usable_extents


def lacks_admission(report: Report) -> bool:
    """True if requests wait and need more memory than the engine has."""
    return report.waiting > 0 and report.admission_extents > report.kv_usable_extents


def still_wanted(report: Report, allotted: int | None = None) -> tuple[int, int]:
    """Return two numbers of extents that a report asks for in total: for the growth of running
    requests, and for this growth and the admission of waiting requests together.

    `allotted` are the extents of a newer allotment that is on its way; None if there is none.
    Demand is what the engine requests above its holding, plus the part of its holding that it says
    it needs: if that part were lent, the next report would request it back. KV that a newer
    allotment revokes counts as gone, otherwise reports in flight could undo each other's allotments
    for ever.
    """
    used, had = report.kv_used_extents, report.kv_usable_extents
    have = had if allotted is None else max(used, min(had, allotted))
    growth, admission = report.growth_extents, report.admission_extents
    kept = growth if growth > had else max(used, min(have, growth))
    if admission > max(had, growth):
        return kept, admission
    return kept, kept + max(0, admission - growth)


def kept_free(usable_blocks: int, open_blocks: int | None, ahead: int) -> int:
    """Return the blocks that stay free when waiting requests are admitted: `ahead` blocks, which
    running requests will soon need, and the usable blocks beyond `open_blocks`, which layers pay
    for. `open_blocks` is None if all usable blocks are open to waiting requests.

    Otherwise a new request would take blocks that layers pay for and grow, and layers would be lent
    for admission although they are meant for running requests only.
    """
    closed = 0 if open_blocks is None else max(0, usable_blocks - open_blocks)
    return closed + ahead
