"""One tenant while a plan is made: what it asks for, what it may give, and what it gets."""

from __future__ import annotations

import msgspec


class TenantRow(msgspec.Struct):
    """Row of a tenant: its demand and its units to give, and what passes have given it.

    What it asks for is in extents, what it may give in units: a unit is one layer, or with
    `gives_experts` one expert of each layer.
    """

    name: str
    active: bool
    priority: int
    extent_bytes: int
    unit_bytes: int
    """Memory that a unit brings."""

    running: int
    growth: int
    admission: int
    cooldown: int
    share: int

    most: int
    """Units that may ever be away."""
    lends: int
    """Units that new demand of others may take while it is idle."""
    surely_hidden: int
    """Units whose loads fit behind decode compute however small its batch is."""
    hidden: int
    """Units whose loads fit behind decode compute at the current T_c."""
    lately_hidden: int
    """Units whose loads hide at the largest T_c of the last `hysteresis_s` seconds."""
    bears: int
    """Units that it streams before running requests of others make room for them."""
    out: int
    """Units that are away already."""

    cached: int = 0
    """Extents in which it keeps cached prefixes as long as layers can go instead, those in which
    its requests are among them."""
    late: bool = False
    """True if its tokens already take longer than they may."""
    gives_experts: bool = False

    kv: int = 0
    """Extents that it gets."""
    kept: int = 0
    """Extents of `kv` for its cached prefixes, which no demand has."""
    given: int = 0
    """Units that it gives."""
    recalls: bool = False
    """True if others' running requests are preempted for its layers."""
    recalled: bool = False
    """True if its own are preempted for the layers of another."""
    wanted: int = 0
    """Extents up to which the present pass serves it."""

    @property
    def beyond_share_bytes(self) -> int:
        """Bytes of KV that it gets beyond its share."""
        return max(0, self.kv - self.share) * self.extent_bytes
