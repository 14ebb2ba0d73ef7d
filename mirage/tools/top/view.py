"""Texts and bars of ``mirage top``, computed from an overview. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from itertools import accumulate, pairwise
from typing import NamedTuple

from mirage.serve.admin.shown import span
from mirage.serve.overview.forms import Decision, OverviewTenant, OverviewTold, RoleBytes
from mirage.units import size

UNKNOWN = "-"
ROLES = ("weights", "KV in use", "KV cached", "KV free")
"""Names of the fields of `RoleBytes`, in order."""
REST = "held by nobody"
HEADINGS = ("TENANT", "STATE", "MEMORY", "HELD", "REQ/S", "TOK/S", "TTFT", "TPOT", "R+W")
NARROW = (12, 9, 13, 10, 6, 7, 7, 7, 6)
"""Width of each column, with a space behind, on a terminal of 80 cells. `R+W` counts running and
waiting requests.
"""
BAR, NAME = HEADINGS.index("MEMORY"), HEADINGS.index("TENANT")
WIDEST_BAR = 40


class TopRow(NamedTuple):
    """Row of one tenant: a text for each of `HEADINGS`, empty for the bar, and the bytes that the
    bar shows.
    """

    name: str
    cells: tuple[str, ...]
    parts: RoleBytes
    whole: int
    """Bytes that a full bar stands for."""
    detail: str


class TopView(NamedTuple):
    """The content of the whole screen."""

    title: str
    device: RoleBytes
    rest: int
    """Bytes of the device that no tenant holds."""
    rows: list[TopRow]
    decisions: list[str]


def view(told: OverviewTold, zone: tzinfo | None = None) -> TopView:
    """The view of an overview. Times of day are in `zone`, by default the local one."""
    parts = [one.memory for one in told.tenants]
    whole = RoleBytes(*map(sum, zip(*map(_bytes, parts), strict=True))) if parts else RoleBytes()
    held = sum(_bytes(whole))
    failed = "" if told.status == "ok" else f"  DEVICE {told.status}: {told.reason}"
    title = (
        f"{told.device}  policy {told.policy}  {size(held)} of {size(told.device_bytes)} held  "
        f"{_clock(told.t, zone)}{failed}"
    )
    widest = max((sum(_bytes(one)) for one in parts), default=0)
    rows = [_row(one, widest, told.t) for one in told.tenants]
    decisions = [_decision(one, zone) for one in told.decisions]
    return TopView(title, whole, max(0, told.device_bytes - held), rows, decisions)


def legend(view: TopView) -> list[str]:
    """Text for each part of the device's bar, with its size."""
    parts = zip((*ROLES, REST), (*_bytes(view.device), view.rest), strict=True)
    return [f"{words} {size(nbytes)}" for words, nbytes in parts]


def in_lines(words: Sequence[str], width: int) -> list[list[int]]:
    """Indices of the `words` on each line of `width` cells; each word takes two further cells."""
    lines: list[list[int]] = [[]]
    left = width
    for number, word in enumerate(words):
        if lines[-1] and len(word) + 2 > left:
            lines.append([])
            left = width
        lines[-1].append(number)
        left -= len(word) + 2
    return lines


def bar(parts: Sequence[int], whole: int, width: int) -> list[int]:
    """Number of cells that each part (in bytes) takes on a bar of `width` cells. The bar stands for
    `whole` bytes, or for the sum of the parts if that is more.
    """
    whole = max(whole, sum(parts), 1)
    ends = [round(end * width / whole) for end in accumulate(parts, initial=0)]
    return [end - begin for begin, end in pairwise(ends)]


def device_bar(view: TopView, width: int) -> list[int]:
    """Number of cells that each role takes on the device's bar of `width` cells, in the order of
    `ROLES`. The last number is that of memory which no tenant holds.
    """
    return bar([*_bytes(view.device), view.rest], 0, width)


def row_bar(row: TopRow, width: int) -> list[int]:
    """Number of cells that each role takes on a tenant's bar of `width` cells, in the order of
    `ROLES`.
    """
    return bar(_bytes(row.parts), row.whole, width)


def widths(terminal: int) -> tuple[int, ...]:
    """Width of each column: `NARROW`, and on a wider terminal half of the further cells for the
    bar, up to `WIDEST_BAR`, and the others for the name, up to 24.
    """
    found = list(NARROW)
    left = max(0, terminal - sum(NARROW) - 2)
    wider = min(left // 2, WIDEST_BAR - found[BAR])
    found[BAR] += wider
    found[NAME] += min(left - wider, 24)
    return tuple(found)


def per_second(value: float | None) -> str:
    """Text of a rate per second in at most five characters, up to 99,999; ``-`` for None."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """Text of a latency in at most six characters: ``"0.4 ms"``, ``"210 ms"``, ``"12.5 s"``; ``-``
    for None.
    """
    if seconds is None:
        return UNKNOWN
    ms = seconds * 1e3
    if ms < 9.95:
        return f"{ms:.1f} ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"


def _row(one: OverviewTenant, widest: int, now: float) -> TopRow:
    rates, times = one.rates, one.latencies
    cells = (
        one.name,
        one.state,
        "",
        size(sum(_bytes(one.memory))),
        per_second(None if rates is None else rates.requests),
        per_second(None if rates is None else rates.tokens),
        duration(times.ttft_p50_s),
        duration(times.tpot_p50_s),
        f"{one.running}+{one.waiting}",
    )
    return TopRow(one.name, cells, one.memory, widest, _detail(one, now))


def _detail(one: OverviewTenant, now: float) -> str:
    times = one.latencies
    share = "auto" if one.share_bytes is None else size(one.share_bytes)
    words = [f"{one.name} is {one.state} for {span(now - one.since)}", f"share {share}"]
    if one.layers_remapped:
        words.append(f"{one.layers_remapped} of {one.layers} layers away")
    if times.requests:
        p99 = f"P99 TTFT {duration(times.ttft_p99_s)}, TPOT {duration(times.tpot_p99_s)}"
        words.append(f"last minute {times.requests} requests, {p99}")
    if one.next != UNKNOWN:
        words.append(one.next)
    return ", ".join(words) + (f": {one.reason}" if one.reason else "")


def _decision(one: Decision, zone: tzinfo | None) -> str:
    why = f" ({one.why})" if one.why else ""
    return f"{_clock(one.t, zone)}  {one.text}{why}"


def _clock(t: float, zone: tzinfo | None) -> str:
    return f"{datetime.fromtimestamp(t, zone):%H:%M:%S}"


def _bytes(of: RoleBytes) -> tuple[int, int, int, int]:
    return of.weights, of.kv_used, of.kv_cached, of.kv_free
