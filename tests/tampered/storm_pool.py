"""The pool itself in its engine's process, with two peers above it and a real folder below."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mirage.tiers.contract import Member
from mirage.tiers.core import Core
from mirage.tiers.counts import PoolState
from mirage.tiers.local import LocalPool
from mirage.tiers.peer_backing import PeerPlan
from mirage.tiers.space import PAGE
from mirage.tiers.ssd.store import SsdStore

PEER_BLOCKS = 8
HOST_BLOCKS = 16
SSD_BLOCKS = 120


class StormPool(LocalPool):
    """Pool that is so small that blocks go from tier to tier; its folder is removed at its end."""

    def __init__(self, member: Member) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mirage-storm-")
        size = member.block_bytes
        self.member = member
        self.disk = SsdStore(Path(self._folder.name), SSD_BLOCKS * (size + 2 * PAGE))
        plan = PeerPlan({"near": PEER_BLOCKS * size, "far": PEER_BLOCKS * size}, backed=True)
        core = Core(HOST_BLOCKS * size, below=self.disk, peers=plan)
        super().__init__(core, member, peer_bytes_per_s=5e8)

    def lend(self, device: str, blocks: int) -> None:
        """Set the bytes that a peer lends from now on."""
        self.resize_peer(device, blocks * self.member.block_bytes)

    def shrink(self, blocks: int) -> None:
        """Set the budget of the host pool."""
        self.resize(min(blocks, HOST_BLOCKS) * self.member.block_bytes)

    @property
    def evicted(self) -> int:
        """Number of blocks that left the pool for lack of room."""
        return sum(own.counts.evictions for own in self._state().tenants.values())

    @property
    def risen(self) -> int:
        """Number of blocks that came up from the disk."""
        return self.disk.counts.loaded

    @property
    def revocations(self) -> int:
        """Number of leases that peers revoked."""
        peers = self._state().peers
        assert peers is not None
        return peers.revocations

    @property
    def idle(self) -> bool:
        """True if no request seeks and no block is reserved or copied. Each call lets copies
        proceed.
        """
        self._shared.carry_out()
        state = self._state()
        assert state.peers is not None
        tenants = [*state.tenants.values(), *state.peers.held.tenants.values()]
        return not any(own.pinned_bytes for own in tenants) and not self._answers

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    def _state(self) -> PoolState:
        return self._shared.core.state()
