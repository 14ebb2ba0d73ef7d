"""Demand of an engine for KV memory: pure arithmetic over its queues.

It counts in blocks, and says it in extents (`in_extents`); a controller hears nothing but extents.
"""

from __future__ import annotations

import msgspec

from mirage.facts import KVGroups
from mirage.protocol import Report
from mirage.units import align_up, ceil_div


class Demand(msgspec.Struct, frozen=True):
    """KV blocks that an engine needs in total, for more and more requests.

    A function of what is in use and what waits, never of what is granted: else an engine would
    want less once it was served, lose it to another, and want it again.
    """

    used: int = 0
    """KV blocks that running requests use."""
    growth: int = 0
    """KV blocks that running requests need now or soon, those in use included."""
    admission: int = 0
    """KV blocks with which the waiting requests can start as well."""


def blocks_ahead(groups: KVGroups, running: int, lookahead_steps: int, headroom_blocks: int) -> int:
    """Free blocks that `running` requests should find.

    Those of `lookahead_steps` decode steps, so that memory arrives before it is needed, and
    some headroom.
    """
    return groups.grown(running * lookahead_steps) + headroom_blocks if running else 0


def blocks_soon(groups: KVGroups, running: int, lookahead_steps: int) -> int:
    """Blocks of the first half of `lookahead_steps`, which newcomers leave free.

    Half, as measured: it spares most of the preemptions that all of them would, and newcomers
    wait hardly longer; with what is asked ahead, TTFT P99 was up to 1.6 times as long.
    """
    return groups.grown(running * lookahead_steps, parts=2)


def blocks_later(groups: KVGroups, running: int, lookahead_steps: int) -> int:
    """Blocks of twice `lookahead_steps`, which newcomers leave free while layers are lent at once.

    Not all up to `growth_level`: where in its steps a demand lies is chance, and up to five times
    what is asked ahead stayed free.
    """
    return groups.grown(2 * running * lookahead_steps) if running else 0


def growth_level(used_blocks: int, ahead: int) -> int:
    """KV blocks in total with which running requests find `ahead` free ones beside theirs.

    In steps of at least twice as many, so that growing asks rarely.
    """
    if not ahead:
        return used_blocks
    step = 1 << (2 * ahead - 1).bit_length()
    return align_up(used_blocks + ahead, step)


def demand(*, used_blocks: int, due_blocks: int, ahead: int, starting: int) -> Demand:
    """Demand of an engine at one moment, in KV blocks.

    `due_blocks` are those that running requests need within their next steps; see `blocks_ahead`,
    and `KVGroups.to_start` for `starting`.
    """
    level = growth_level(used_blocks + due_blocks, ahead)
    return Demand(used_blocks, level, level + starting)


def in_extents(blocks: int, extent_blocks: int) -> int:
    """Extents that hold `blocks` blocks and, in all, one null block; 0 for no blocks."""
    return ceil_div(blocks + 1, extent_blocks) if blocks else 0


def lacks_growth(report: Report) -> bool:
    """True if running requests want more than they have: the engine waits for an answer."""
    return report.growth_extents > report.kv_usable_extents


def lacks_admission(report: Report) -> bool:
    """True if requests wait for more memory than there is."""
    return report.waiting > 0 and report.admission_extents > report.kv_usable_extents


def still_wanted(report: Report, allotted: int | None = None) -> tuple[int, int]:
    """Extents in total for growth, and for admission, that a report asks for.

    `allotted` are those of a newer allotment on its way. Demand is what the engine requests above
    its holding, plus the part of its holding that it says it needs: if that part were lent, the
    next report would request it back. KV that a newer allotment revokes counts as gone, otherwise
    reports in flight could undo each other's allotments for ever.
    """
    used, had = report.kv_used_extents, report.kv_usable_extents
    have = had if allotted is None else max(used, min(had, allotted))
    growth, admission = report.growth_extents, report.admission_extents
    kept = growth if growth > had else max(used, min(have, growth))
    if admission > max(had, growth):
        return kept, admission
    return kept, kept + max(0, admission - growth)


def kept_free(usable_blocks: int, open_blocks: int | None, ahead: int) -> int:
    """Blocks that newcomers leave free if layers are lent to running requests only.

    What layers pay for, and what is asked for the running ones `ahead` of need. Else a
    newcomer would take that, grow in turn, and layers would be lent for admission after all.
    """
    closed = 0 if open_blocks is None else max(0, usable_blocks - open_blocks)
    return closed + ahead
