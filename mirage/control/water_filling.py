"""Water filling: serving demand out of free bytes and layers, the mechanics of a plan.

The policy, that is which demand comes first and which layers may go for it, is the planner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mirage.units import ceil_div


class Ask(NamedTuple):
    """One tenant before the plan is made. Extents above, layers below.

    Of a tenant that gives experts, a layer stands for one expert of each layer.
    """

    name: str
    active: bool
    priority: int
    extent_bytes: int
    layer_bytes: int

    running: int
    growth: int
    admission: int
    cooldown: int
    share: int

    most: int
    """Layers that may ever be away."""
    lends: int
    """Layers that new demand of others may take while it is idle."""
    surely_hidden: int
    """Layers whose loads fit behind decode compute however small its batch is."""
    hidden: int
    """Layers whose loads fit behind decode compute at the current T_c."""
    lately_hidden: int
    """The same at the largest T_c of the last `hysteresis_s` seconds."""
    bears: int
    """Layers that it streams before running requests of others make room for them."""
    out: int
    """Layers that are away already."""

    cached: int = 0
    """Extents in which it keeps cached prefixes as long as layers can go instead, those in which
    its requests are among them."""
    late: bool = False
    """Whether its tokens already take longer than they may."""
    experts: bool = False
    """Whether it gives experts instead of layers."""


@dataclass(slots=True)
class Row:
    """One tenant while the plan is made: what it asks for, and what it gets."""

    ask: Ask
    kv: int = 0
    alpha: int = 0
    served: int = 0
    """Of `kv`, what demand has: the rest holds cached prefixes."""
    recalls: bool = False
    """Whether others' running requests are preempted for its layers."""


Amount = Callable[[Row], int]


def none(_: Row) -> int:
    return 0


def out(row: Row) -> int:
    return row.ask.out


def most(row: Row) -> int:
    return max(row.ask.most, row.ask.out)


def lends(row: Row) -> int:
    return row.ask.lends


def lends_or_out(row: Row) -> int:
    return max(row.ask.lends, row.ask.out)


def hidden(row: Row) -> int:
    return row.ask.hidden


def still_hidden(row: Row) -> int:
    return min(row.ask.out, row.ask.lately_hidden)


def hidden_or_out(row: Row) -> int:
    return row.ask.hidden if row.recalls else max(row.ask.hidden, row.ask.out)


class Tier(NamedTuple):
    """How far to serve, in extents, and how many layers may be away for it."""

    level: Amount
    idle: Amount
    """Of a tenant without work."""
    own: Amount
    """Of the asking tenant."""
    others: Amount
    """Of any active tenant, in the last place."""


class Fill:
    """Serves demand out of free bytes and layers; `rows` carry the result."""

    def __init__(self, rows: Sequence[Row], donors: Iterable[str], free: int) -> None:
        """`donors` in the order in which they give; `free` bytes if nobody had any KV."""
        by_name = {r.ask.name: r for r in rows}
        givers = [by_name[name] for name in donors]
        self.rows = rows
        self.idle = [r for r in givers if not r.ask.active]
        self.active = [r for r in givers if r.ask.active]
        self.by_priority = [
            [r for r in rows if r.ask.priority == priority]
            for priority in sorted({r.ask.priority for r in rows}, reverse=True)
        ]
        self.free = free
        self._pool = free
        self.most_lent: int | None = None
        """Bytes of KV, over all tenants, that demand may have beyond what no layer pays for.

        In KV, not in layers: what whole layers bring too much would be lent at every change of
        turns, and paid for with whole layers of another size at the next.
        """

    def keep_running(self) -> None:
        """What running requests sit on is covered first.

        Those that have outgrown their share pay with their own hidden layers before an idle tenant
        gives more than it lends, or layers of a woken donor stay away for them. Else what a
        tenant grows by on its own layers would be moved to an idle one's in the next plan, and its
        own be there to grow by once more.
        """
        for row in self.rows:
            row.kv = row.ask.running
            self.free -= row.ask.running * row.ask.extent_bytes
        self._gather(self.idle, lends_or_out, 0)
        self._gather([r for r in self.active if r.ask.running > r.ask.share], hidden, 0)
        self._gather(self.idle, most, 0)
        self._gather(self.active, hidden_or_out, 0)

    def recall(self) -> None:
        """Running requests beyond the share of their tenant make room for layers of a woken one.

        Only where its decode could not bear to be without them, and then for all that it would
        feel. Computing a few prompts anew takes a fraction of a second; the last of the requests
        that sit there may run for minutes.
        """
        for row in self.active:
            if row.alpha <= row.ask.bears:
                continue
            row.recalls = True
            felt = row.alpha - row.ask.hidden
            others = [r for r in self.rows if r is not row]
            self._call_in(others, felt * row.ask.layer_bytes)
            layers = min(felt, max(0, self.free) // row.ask.layer_bytes)
            row.alpha -= layers
            self.free -= layers * row.ask.layer_bytes

    def keep_prefixes(self) -> None:
        """Free memory with cached prefixes that are dearer than layers: its owners keep it."""
        for row in self.rows:
            row.served = row.kv
        self.share_out(self.rows, lambda r: r.ask.cached)

    def serve(self, tier: Tier) -> None:
        """Serve one tier: higher priorities first; free bytes, layers, then cached prefixes."""
        short = False
        for rows in self.by_priority:
            asking = [r for r in rows if r.kv < tier.level(r)]
            if not asking:
                continue
            short = True
            self._gather(self.idle, tier.idle, _missing(asking, tier.level))
            self.share_out(asking, tier.level)
            for row in asking:
                self._gather([row], tier.own, _missing([row], tier.level))
                self.share_out([row], tier.level)
            self._gather(self.active, tier.others, _missing(asking, tier.level))
            self.share_out(asking, tier.level)
            if (wanted := _missing(asking, tier.level)) > self.free:
                self._take_prefixes(wanted, tier.level)
                self.share_out(asking, tier.level)
        if short:
            self.share_out(self.rows, tier.level)  # what whole layers brought too much
        for row in self.rows:
            row.served = max(row.served, min(row.kv, tier.level(row)))

    def share_out(self, rows: Iterable[Row], level: Amount) -> None:
        """Give free bytes, the same to each until it has enough (max-min fairness)."""
        if self._usable() <= 0:
            return
        short = [r for r in rows if r.kv < level(r)]
        if len(short) > 1:
            short.sort(key=lambda r: _missing([r], level))
        for left, row in zip(range(len(short), 0, -1), short, strict=True):
            self._give(row, level(row), self._usable() // left)
        for row in short:  # what rounding to extents left over
            self._give(row, level(row), self._usable())

    def restore(self) -> None:
        """Layers come back for free bytes that no demand took; first those still in place."""
        for bound in (out, none):
            for row in [*reversed(self.active), *reversed(self.idle)]:
                more = row.alpha - bound(row)
                if more <= 0:
                    continue
                layers = min(more, max(0, self.free) // row.ask.layer_bytes)
                row.alpha -= layers
                self.free -= layers * row.ask.layer_bytes

    def keep_back(self, lend_percent: float) -> int:
        """Take aside what must not be lent: bytes that were free, which the caller adds again.

        Of all free bytes and all KV beyond its owner's share, `lend_percent` per cent may be in
        use beyond shares. Judged by what is lent already, not by what is free: else each plan
        would lend a part of what the one before kept.
        """
        lent = sum(max(0, r.kv - r.ask.share) * r.ask.extent_bytes for r in self.rows)
        kept = int((self.free + lent) * (1 - lend_percent / 100))
        kept = max(0, min(self.free, kept))
        self.free -= kept
        return kept

    def keep_away(self) -> None:
        """Without reversion: layers that are away stay so."""
        for row in self.rows:
            more = max(0, row.ask.out - row.alpha)
            row.alpha += more
            self.free += more * row.ask.layer_bytes

    def _give(self, row: Row, level: int, most_bytes: int) -> None:
        extents = max(0, min(level - row.kv, most_bytes // row.ask.extent_bytes))
        row.kv += extents
        self.free -= extents * row.ask.extent_bytes

    def _take_prefixes(self, wanted: int, level: Amount) -> None:
        """Until `wanted` bytes are free: of low priorities first, then of who keeps most."""

        def kept(row: Row) -> int:
            return row.kv - max(row.served, min(row.kv, level(row)))

        keeping = [row for row in self.rows if kept(row) > 0]
        for row in sorted(keeping, key=lambda r: (r.ask.priority, -kept(r) * r.ask.extent_bytes)):
            extents = min(kept(row), ceil_div(max(0, wanted - self.free), row.ask.extent_bytes))
            row.kv -= extents
            self.free += extents * row.ask.extent_bytes

    def _gather(self, donors: Iterable[Row], limit: Amount, wanted: int) -> None:
        """Take layers until `wanted` bytes are free: first those that cost no new copies.

        Those are idle tenants' layers that are away already, and active tenants' layers whose
        loads are hidden, away or not: else layers that one demand took would be there for all
        others in the next plan.
        """
        wanted = min(wanted, self._room(wanted))
        if wanted <= self.free:
            return
        donors = list(donors)
        for at_once in (True, False):
            for row in donors:
                bound = limit(row)
                if at_once:
                    bound = min(bound, row.ask.hidden if row.ask.active else row.ask.out)
                if bound <= row.alpha:
                    continue
                short = ceil_div(max(0, wanted - self.free), row.ask.layer_bytes)
                layers = min(short, bound - row.alpha)
                row.alpha += layers
                self.free += layers * row.ask.layer_bytes

    def _call_in(self, rows: Iterable[Row], wanted: int) -> None:
        """Take KV beyond shares until `wanted` bytes are free: low priorities first, then most."""

        def beyond(row: Row) -> int:
            return max(0, row.kv - row.ask.share) * row.ask.extent_bytes

        for row in sorted(rows, key=lambda r: (r.ask.priority, -beyond(r))):
            short = min(wanted - self.free, beyond(row))
            extents = max(0, ceil_div(short, row.ask.extent_bytes))
            row.kv -= extents
            self.free += extents * row.ask.extent_bytes

    def _usable(self) -> int:
        """Free bytes that may become KV."""
        return min(self.free, self._room(self.free))

    def _room(self, otherwise: int) -> int:
        """Bytes of KV until the most is lent; `otherwise` if there is no such bound."""
        if self.most_lent is None:
            return otherwise
        return self._pool + self.most_lent - sum(r.kv * r.ask.extent_bytes for r in self.rows)


def _missing(rows: Iterable[Row], level: Amount) -> int:
    """Bytes until all `rows` are served up to `level`."""
    return sum(max(0, level(r) - r.kv) * r.ask.extent_bytes for r in rows)
