"""Counts of the pool's work for each tenant since the pool began. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage.tiers.ledger import TierLedger
from mirage.tiers.peers.device import DeviceState
from mirage.tiers.space import BlockSpace


@dataclass
class Counts:
    """Counts of one tenant on one medium since the pool began, without replicas (copies of
    parameters). A key counts as a hit once for each request, as a miss at each seek.

    `misses` and `refused` concern all media, and are counted on host memory.
    """

    hits: int = 0
    """Sought keys that were READY immediately, or became READY while the request waited."""
    misses: int = 0
    """Sought keys that the pool did not have."""
    risen: int = 0
    """Hits on blocks that were copied to host memory from the tier below while the request
    waited."""
    evictions: int = 0
    """Blocks of this tenant that were evicted for lack of room."""
    refused: int = 0
    """Keys that could not be stored for lack of room."""
    stored_bytes: int = 0
    """Bytes of committed blocks."""
    loaded_bytes: int = 0
    """Bytes of blocks whose places engines asked for, to load them to the device."""


@dataclass(frozen=True)
class TenantState:
    """One tenant's part of the pool: bytes and counts."""

    held_bytes: int
    pinned_bytes: int
    reserved_bytes: int
    share_bytes: int
    standing: str
    counts: Counts


@dataclass(frozen=True)
class PoolState:
    """One medium of the pool at one moment, host memory or the memory of peers, in bytes."""

    budget_bytes: int
    used_bytes: int
    """Bytes of memory that may be in use. They exceed the budget only by blocks that are pinned
    while it shrinks, and by memory that engines have page-locked and were told to unlock."""
    blocks: int
    unused_bytes: int
    """Bytes of `used_bytes` that are in no block."""
    owed_bytes: int
    """Bytes above the budget that are given back once requests, and engines that have them
    page-locked, release them."""
    tenants: dict[str, TenantState]
    serving: bool = True
    """False once the pool has ended, as after an error: engines compute its blocks again."""
    peers: PeersState | None = None


@dataclass(frozen=True)
class PeersState:
    """Blocks on peers at one moment, and the memory that each peer lends."""

    held: PoolState
    devices: dict[str, DeviceState]
    backed: bool
    revocations: int
    """Number of leases that peers took back."""


def picture(
    ledger: TierLedger,
    space: BlockSpace,
    blocks: int,
    counts: Mapping[str, Counts],
    peers: PeersState | None = None,
) -> PoolState:
    """Return a snapshot of a medium of `blocks` blocks; `peers` is the state of the peers above it,
    if there are any."""
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
