"""Loans between tenants: who lent what to whom, what it cost, and what it gained. Pure.

*Cost.* While layers and experts of a tenant are lent, its steps wait for those that are loaded; its
engine measures the time (`Counters.stall_s`), and each sequence of such a step gets its token so
much later (`token_waits`). This cost is divided among the loans by bytes; layers that a tenant
streams for its own requests are a loan to itself. Layers that are on their way back after a loan
has ended still count. The cost of idle KV memory to its lender (cached prefixes, a longer wait) is
not measured.

*Gain.* An estimate, compared with what the borrower's own share could hold. If B blocks are in use
and the share has room for S of them, then of the running sequences, all assumed equally long, the
part 1 - S / B would not have fit. Each time this number of sequences rises by one, a sequence came
to use borrowed memory: if it began to run meanwhile it would have waited, else it had grown and
would have been preempted. A sequence that takes the place of another between two reports is not
noticed, so the estimate is rather low. The gain is divided among the loans by bytes.

Sums are kept since the start, and by minutes for as long as there is room.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from math import ceil, floor
from typing import TypeVar

import msgspec

from mirage.control.lent import STREAMED, Lending
from mirage.control.loan_changes import LoanChange, changed
from mirage.control.loan_sums import LoanMinute, LoanSums, Pair
from mirage.control.moves import Kind
from mirage.control.token_waits import TokenWaits, token_waits
from mirage.protocol import Report

MINUTE_S = 60.0
MOST_MINUTES = 10_000
"""Number of `LoanMinute`s that are kept, each for one pair (lender and borrower)."""
MOST_PAIRS = 500
MOST_CHANGES = 500
"""Number of newest changes of loans that are kept."""
REST: Pair = ("*", "*")
"""Pair that stands for all pairs beyond the first `MOST_PAIRS`."""
NEARLY = 1e-6
"""Tolerance within which a number of sequences counts as whole."""
Parts = dict[str, dict[Pair, float]]
"""Parts by tenant and pair of what that tenant lends or borrows; they add up to 1 for each
tenant."""
T = TypeVar("T")


class _Counted(msgspec.Struct):
    """Counts of one engine at its last report, with which the next report is compared."""

    at: float
    stepped: Report
    """Last report that counted a new step."""
    running: int
    beyond: float
    """Number of sequences that its share would not have held."""
    level: int
    """`beyond` as a whole number, which follows it by less than one."""


class LoanBook:
    """Loans of one device. Times are seconds of one clock, from 0 on."""

    def __init__(self) -> None:
        self._totals: dict[Pair, LoanSums] = {}
        self.kept_since = 0.0
        """Time in seconds from which on all minutes are kept."""
        self._minutes: deque[LoanMinute] = deque()
        self._newest: dict[Pair, LoanMinute] = {}
        self.lent: dict[Pair, list[Lending]] = {}
        """Present loans by pair."""
        self.changes: deque[LoanChange] = deque(maxlen=MOST_CHANGES)
        """Newest changes of loans, the newest last."""
        self._until = 0.0
        """Time in seconds up to which the present loans are counted."""
        self._counted: dict[str, _Counted] = {}
        self._streamed: Parts = {}
        """Parts, by lender, of the layers and experts that the lender streams, or last streamed."""
        self._borrowed: Parts = {}
        """Parts, by borrower, of the memory that the borrower has beyond its share."""

    # -- events -------------------------------------------------------------------------

    def planned(self, lent: Iterable[Lending], now: float) -> None:
        """Note that from `now` on the loans are `lent`, and no others."""
        self._pass(now)
        before, self.lent = self.lent, {}
        for one in lent:
            self.lent.setdefault((one.lender, one.borrower), []).append(one)
        self.changes += changed(before, self.lent, now, begins=False)
        self.changes += changed(self.lent, before, now, begins=True)
        self._borrowed = _parts({pair: _nbytes(each) for pair, each in self.lent.items()}, 1)
        streamed = {pair: _nbytes(each, STREAMED) for pair, each in self.lent.items()}
        # A lender that no longer streams for others keeps its last parts: its layers are on their
        # way back.
        self._streamed |= _parts(streamed, 0)
        for pair, each in self.lent.items():
            begins = streamed[pair] and not _nbytes(before.get(pair, ()), STREAMED)
            counted = self._counted.get(pair[0]) if begins else None
            requests = 0 if counted is None else counted.running
            most = {one.kind.value: one.nbytes for one in each}
            self._add(pair, LoanSums(most=most, requests=requests), now)

    def reported(self, name: str, report: Report, own_blocks: int, now: float) -> None:
        """Note an engine's report at `now`; its own share has room for `own_blocks` KV blocks of
        requests."""
        used = report.kv_used_blocks
        beyond = report.running * (1 - own_blocks / used) if used > own_blocks else 0.0
        before = self._counted.get(name)
        if before is None or report.steps < before.stepped.steps:  # it counts anew
            now_beyond = _whole(0, beyond)
            self._counted[name] = _Counted(now, report, report.running, beyond, now_beyond)
            return
        self._saves(name, before, report.running, beyond, now)
        before.at, before.running, before.beyond = now, report.running, beyond
        if (waits := token_waits(before.stepped, report)) is not None:
            self._costs(name, waits, report.started - before.stepped.started, now)
            before.stepped = report

    def lost(self, name: str) -> None:
        """Note that the engine of a tenant is gone, or sleeps: its next counts are not compared
        with earlier ones."""
        self._counted.pop(name, None)
        self._streamed.pop(name, None)

    def forget(self, name: str) -> None:
        """Drop the loans of a tenant that was removed."""
        self.lost(name)
        self._minutes = deque(one for one in self._minutes if name not in one.pair)
        kept = (one for one in self.changes if name not in (one.lender, one.borrower))
        self.changes = deque(kept, maxlen=MOST_CHANGES)
        self._totals = _without(name, self._totals)
        self._newest, self.lent = _without(name, self._newest), _without(name, self.lent)
        self._streamed = {one: _without(name, of) for one, of in self._streamed.items()}
        self._borrowed = {one: _without(name, of) for one, of in self._borrowed.items()}

    def last(self, seconds: float, now: float) -> list[LoanMinute]:
        """Return the minutes that lie wholly or partly in the last `seconds`, as copies where they
        may still change."""
        self._pass(now)
        first = floor((now - seconds) / MINUTE_S)
        return [
            one if self._newest.get(one.pair) is not one else one.copied()
            for one in self._minutes
            if one.minute >= first
        ]

    def totals(self, now: float) -> Mapping[Pair, LoanSums]:
        """Return the sums of each pair since the start; beyond `MOST_PAIRS` pairs, those of all
        others together as `REST`."""
        self._pass(now)
        return self._totals

    # -- cost and gain ------------------------------------------------------------------

    def _costs(self, lender: str, waits: TokenWaits, started: int, now: float) -> None:
        for pair, part in self._streamed.get(lender, {}).items():
            if waits.wait_s > 0 or _nbytes(self.lent.get(pair, ()), STREAMED):
                wait_s, token_s = waits.wait_s * part, waits.token_s * part
                sums = LoanSums(
                    wait_s=wait_s, token_s=token_s, tokens=waits.tokens, requests=started
                )
                self._add(pair, sums, now)

    def _saves(
        self, borrower: str, before: _Counted, running: int, beyond: float, now: float
    ) -> None:
        level = _whole(before.level, beyond)
        came = max(0, level - before.level)
        began = min(came, max(0, running - before.running))
        request_s = before.beyond * (now - before.at)
        before.level = level
        if not came and not request_s:
            return
        for pair, part in self._borrowed.get(borrower, {}).items():
            grown = (came - began) * part
            sums = LoanSums(preemptions=grown, waits=began * part, request_s=request_s * part)
            self._add(pair, sums, now)

    # -- sums ---------------------------------------------------------------------------

    def _pass(self, now: float) -> None:
        """Add the present loans up to `now` to the sums, minute by minute."""
        while self.lent and self._until < now:
            end = min(now, (floor(self._until / MINUTE_S) + 1) * MINUTE_S)
            for pair, each in self.lent.items():
                self._add(pair, _lasting(each, end - self._until), self._until)
            self._until = end
        self._until = now

    def _add(self, pair: Pair, sums: LoanSums, now: float) -> None:
        known = pair in self._totals or len(self._totals) < MOST_PAIRS
        self._totals.setdefault(pair if known else REST, LoanSums()).add(sums)
        number, newest = floor(now / MINUTE_S), self._newest.get(pair)
        if newest is None or newest.minute != number:
            newest = self._newest[pair] = LoanMinute(number, pair, LoanSums())
            self._minutes.append(newest)
            if len(self._minutes) > MOST_MINUTES:
                self.kept_since = (self._minutes.popleft().minute + 1) * MINUTE_S
        newest.sums.add(sums)


def _lasting(lent: Iterable[Lending], seconds: float) -> LoanSums:
    """Return the sums of `lent` over `seconds`."""
    sums = LoanSums(lent_s=seconds)
    for one in lent:
        byte_s = one.nbytes * seconds
        sums.byte_s += byte_s
        sums.most[one.kind.value] = sums.most.get(one.kind.value, 0) + one.nbytes
        sums.reasons[one.reason.value] = sums.reasons.get(one.reason.value, 0.0) + byte_s
    return sums


def _nbytes(lent: Iterable[Lending], kinds: Collection[Kind] = tuple(Kind)) -> int:
    return sum(one.nbytes for one in lent if one.kind in kinds)


def _parts(nbytes: Mapping[Pair, int], side: int) -> Parts:
    """Return each pair's part of all bytes of its lender (`side` 0) or borrower (1)."""
    wholes: Counter[str] = Counter()
    for pair, own in nbytes.items():
        wholes[pair[side]] += own
    parts: Parts = {}
    for pair, own in nbytes.items():
        if own:
            parts.setdefault(pair[side], {})[pair] = own / wholes[pair[side]]
    return parts


def _whole(level: int, value: float) -> int:
    """Return `value` rounded towards `level` if they differ by 1 or more, else `level`."""
    if value > level + 1 - NEARLY:
        return floor(value + NEARLY)
    return ceil(value - NEARLY) if value < level - 1 + NEARLY else level


def _without(name: str, pairs: Mapping[Pair, T]) -> dict[Pair, T]:
    return {pair: value for pair, value in pairs.items() if name not in pair}
