"""Counts of the pool's work for each tenant, since it began. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage.tiers.ledger import TierLedger
from mirage.tiers.peers.device import DeviceState
from mirage.tiers.space import BlockSpace


@dataclass
class Counts:
    """Keys and blocks are counted once for each request that seeks them."""

    hits: int = 0
    """Keys that were sought and READY, at once or after they came up."""
    misses: int = 0
    """Keys that were sought and not there."""
    risen: int = 0
    """Hits whose blocks came up from below."""
    evictions: int = 0
    """Blocks of this tenant that went for want of room."""
    refused: int = 0
    """Keys that were to be stored and found no room."""
    stored_bytes: int = 0
    """Committed."""
    loaded_bytes: int = 0
    """Whose places engines asked for."""


@dataclass(frozen=True)
class TenantState:
    """A tenant's part of the pool: bytes and counts."""

    held_bytes: int
    pinned_bytes: int
    reserved_bytes: int
    share_bytes: int
    standing: str
    counts: Counts


@dataclass(frozen=True)
class PoolState:
    """The host pool at one moment, in bytes."""

    budget_bytes: int
    used_bytes: int
    """Memory that may be in use: never over the budget, but for what is pinned while it shrinks,
    and what engines have locked and were told to let go of."""
    blocks: int
    unused_bytes: int
    """Bytes of `used_bytes` in places of no block."""
    owed_bytes: int
    """Still to be given back once requests, and engines that have it locked, let go of it."""
    tenants: dict[str, TenantState]
    serving: bool = True
    """False once the pool has ended before its time: engines compute what it held."""
    peers: PeersState | None = None


@dataclass(frozen=True)
class PeersState:
    """Blocks on peers at one moment, and what each peer lends."""

    held: PoolState
    devices: dict[str, DeviceState]
    backed: bool
    revocations: int
    """Leases that peers took back."""


def picture(
    ledger: TierLedger,
    space: BlockSpace,
    blocks: int,
    counts: Mapping[str, Counts],
    peers: PeersState | None = None,
) -> PoolState:
    """All of it as it is now."""
    return PoolState(
        budget_bytes=ledger.budget,
        used_bytes=space.used,
        blocks=blocks,
        unused_bytes=space.slabs.fragmentation().unused + space.waiting,
        owed_bytes=space.owed,
        tenants={t: _tenant(t, ledger, counts.get(t, Counts())) for t in ledger.tenants},
        peers=peers,
    )


def _tenant(tenant: str, ledger: TierLedger, counts: Counts) -> TenantState:
    own, share = ledger.account(tenant), ledger.share(tenant)
    standing = own.standing.name.lower()
    return TenantState(own.held, own.pinned, own.reserved, share, standing, replace(counts))
