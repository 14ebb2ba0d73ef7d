"""Row of one tenant while a plan is made: its demand, what it may give, and what it gets."""

from __future__ import annotations

import msgspec


class TenantRow(msgspec.Struct):
    """Row of a tenant: its demand and its units to give, and what passes have given it.

    Demand is in extents. What it may give is in units: a unit is one layer, or with `gives_experts`
    one expert of each layer.
    """

    name: str
    active: bool
    priority: int
    extent_bytes: int
    unit_bytes: int
    """Bytes of memory that a unit brings."""

    running: int
    growth: int
    admission: int
    cooldown: int
    share: int

    most: int
    """Units that may ever be away."""
    lends: int
    """Units that new demand of other tenants may take while this tenant is idle."""
    surely_hidden: int
    """Units that may be away while all loads fit behind decode compute even at the smallest
    batch."""
    hidden: int
    """Units that may be away while all loads fit behind decode compute at the current T_c."""
    lately_hidden: int
    """Units that may be away while all loads hide at the largest T_c of the last `hysteresis_s`
    seconds."""
    bears: int
    """Largest number of units that may be away from a running tenant before running requests of
    others are preempted to bring some back."""
    out: int
    """Units that are away already."""

    cached: int = 0
    """Extents in which the tenant keeps cached prefixes as long as layers can go instead; the
    extents of its requests are included."""
    late: bool = False
    """True if a decode step already computes for longer than `remap.tbt_ms`."""
    gives_experts: bool = False

    kv: int = 0
    """KV extents that the tenant gets."""
    kept: int = 0
    """Extents of `kv` for its cached prefixes that demand has not taken."""
    given: int = 0
    """Units that the tenant gives."""
    recalls: bool = False
    """True if running requests of others are preempted for its layers."""
    recalled: bool = False
    """True if its own running requests are preempted for the layers of another tenant."""
    wanted: int = 0
    """KV extents up to which the present pass serves it."""

    @property
    def beyond_share_bytes(self) -> int:
        """Bytes of KV that the tenant gets beyond its share."""
        return max(0, self.kv - self.share) * self.extent_bytes
