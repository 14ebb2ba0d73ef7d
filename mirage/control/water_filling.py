"""Water filling: free bytes and layers become KV memory. The mechanics of a plan.

`passes` has the policy: which demand comes first, and which layers may go for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mirage.control.moves import Flow, Kind
from mirage.control.rows import TenantRow
from mirage.units import ceil_div

Amount = Callable[[TenantRow], int]
"""Function that returns extents or units of one tenant. No move changes its result for extents."""


class Fill:
    """Memory while a plan is made: each move is made here and noted as `flows`."""

    def __init__(
        self,
        rows: Sequence[TenantRow],
        donors: Iterable[str],
        free: int,
        most_lent: int | None = None,
    ) -> None:
        """Initialise; `donors` are in the order in which they give, and `free` bytes are free with
        no KV memory given.

        `most_lent`: bytes of KV that the demand of all tenants may have beyond `free`, from layers;
        None for no limit. The limit is on KV, not on layers: the excess of whole layers would
        be lent at every change of turns, and paid for with whole layers of another size at the
        next.
        """
        by_name = {r.name: r for r in rows}
        givers = [by_name[name] for name in donors]
        self.rows = rows
        self.idle = [r for r in givers if not r.active]
        self.active = [r for r in givers if r.active]
        self.free = free
        self.brought = 0
        """Bytes that became free for demand, from layers, experts and cached prefixes."""
        self._flows: list[Flow] = []
        self._most_kv = None if most_lent is None else free + most_lent
        self._kv = 0
        """Bytes of KV of all tenants together."""

    def flows(self) -> list[Flow]:
        """Return the flows since the last call."""
        flows, self._flows = self._flows, []
        return flows

    # -- single tenants -----------------------------------------------------------------

    def give(self, row: TenantRow, extents: int, kind: Kind = Kind.KV) -> None:
        """Turn free bytes into `extents` KV extents of a tenant: for its demand, or, by `kind`, for
        its cached prefixes."""
        nbytes = extents * row.extent_bytes
        row.kv += extents
        if kind is Kind.PREFIXES:
            row.kept += extents
        self.free -= nbytes
        self._kv += nbytes
        self._flows.append((kind, row.name, nbytes))

    def take(self, row: TenantRow, extents: int, kind: Kind = Kind.KV) -> None:
        """Turn `extents` KV extents of a tenant into free bytes: of its demand, or, by `kind`, of
        its cached prefixes."""
        self.give(row, -extents, kind)

    def use_prefixes(self, row: TenantRow) -> None:
        """Count memory that a tenant has for its cached prefixes as memory for its demand instead,
        up to its wanted KV. The tenant gets no more memory by this."""
        above = min(row.kept, max(0, row.kv - row.wanted))
        if extents := row.kept - above:
            row.kept = above
            nbytes = extents * row.extent_bytes
            self._flows += [(Kind.PREFIXES, row.name, -nbytes), (Kind.KV, row.name, nbytes)]

    def give_away(self, row: TenantRow, units: int) -> None:
        """Turn layers or experts of a tenant into free bytes."""
        nbytes = units * row.unit_bytes
        row.given += units
        self.free += nbytes
        kind = Kind.EXPERTS if row.gives_experts else Kind.LAYERS
        self._flows.append((kind, row.name, -nbytes))

    def bring_back(self, row: TenantRow, most: int) -> None:
        """Bring layers or experts back, at most `most` of them and no more than fit into the free
        bytes."""
        if most > 0 and (units := min(most, max(0, self.free) // row.unit_bytes)):
            self.give_away(row, -units)

    # -- several tenants ----------------------------------------------------------------

    def aim(self, level: Amount) -> None:
        """Set the KV extents that each row wants to its `level`: later calls serve up to these."""
        for row in self.rows:
            row.wanted = level(row)

    def asking(self) -> list[list[TenantRow]]:
        """Return tenants below their wanted KV: those of each priority together, the highest
        first."""
        short = [r for r in self.rows if r.kv < r.wanted]
        if not short:
            return []
        priorities = sorted({r.priority for r in short}, reverse=True)
        return [[r for r in short if r.priority == priority] for priority in priorities]

    def usable(self, wanted: int) -> int:
        """Return how many of `wanted` free bytes may become KV memory for demand: all of them, or
        fewer near the limit `most_lent`."""
        if self._most_kv is None:
            return wanted
        left = self._most_kv - self._kv
        return wanted if wanted < left else left

    def share_out(self, rows: Iterable[TenantRow], kind: Kind = Kind.KV) -> None:
        """Give free bytes to tenants below their wanted KV, in equal parts (max-min fairness).

        `kind`: use of the memory.
        """
        left = self.usable(self.free)
        if left <= 0:
            return
        short = [row for row in rows if row.kv < row.wanted]
        if len(short) > 1:
            short.sort(key=lambda row: (row.wanted - row.kv) * row.extent_bytes)
        parts = len(short)
        for row in short:
            left -= self._give_up_to(row, left // parts, kind)
            parts -= 1
        for row in short[:-1]:  # bytes that rounding to extents left over
            if row.kv < row.wanted:
                left -= self._give_up_to(row, left, kind)

    def gather(self, donors: Sequence[TenantRow], limit: Amount, wanted: int) -> None:
        """Take layers until `wanted` bytes are free, first those that cost no new copies. `limit`
        returns the number of layers that a donor may have given in all.

        Those are idle tenants' layers that are away already, and active tenants' layers whose loads
        are hidden, away or not: otherwise layers that one demand took would be available to all
        others in the next plan.
        """
        if wanted <= self.free:
            return
        for at_once in (True, False):
            for row in donors:
                bound = limit(row)
                if at_once:
                    first = row.hidden if row.active else row.out
                    bound = bound if bound < first else first
                if bound <= row.given:
                    continue
                units = min(ceil_div(wanted - self.free, row.unit_bytes), bound - row.given)
                self.give_away(row, units)
                self.brought += units * row.unit_bytes
                if wanted <= self.free:
                    return

    def take_prefixes(self, wanted: int) -> None:
        """Take memory of cached prefixes until `wanted` bytes are free: low priorities first, then
        the tenants that keep most."""
        keeping = [row for row in self.rows if row.kept]
        for row in sorted(keeping, key=lambda r: (r.priority, -r.kept * r.extent_bytes)):
            extents = min(row.kept, ceil_div(max(0, wanted - self.free), row.extent_bytes))
            self.take(row, extents, Kind.PREFIXES)
            self.brought += extents * row.extent_bytes

    def call_in(self, rows: Iterable[TenantRow], wanted: int) -> None:
        """Take KV beyond shares until `wanted` bytes are free: low priorities first, then the
        tenants with most."""
        for row in sorted(rows, key=lambda r: (r.priority, -r.beyond_share_bytes)):
            short = min(wanted - self.free, row.beyond_share_bytes)
            if short > 0:
                self.take(row, ceil_div(short, row.extent_bytes))
                row.recalled = True

    def _give_up_to(self, row: TenantRow, most_bytes: int, kind: Kind) -> int:
        """Give a tenant KV extents up to its wanted KV and `most_bytes`; return their bytes.
        `kind`: use of the memory, for demand or for cached prefixes."""
        extents, short = most_bytes // row.extent_bytes, row.wanted - row.kv
        extents = extents if extents < short else short
        if extents <= 0:
            return 0
        self.give(row, extents, kind)
        return extents * row.extent_bytes


def missing(rows: Iterable[TenantRow]) -> int:
    """Return the bytes that are missing until all `rows` have their wanted KV."""
    return sum([(r.wanted - r.kv) * r.extent_bytes for r in rows if r.kv < r.wanted])
