"""The pool itself in its engine's process, with two peers that are slower than memory."""

from __future__ import annotations

from mirage.tiers.contract import Member
from mirage.tiers.core import Core
from mirage.tiers.local import LocalPool
from mirage.tiers.peer_backing import PeerPlan

PEER_BLOCKS = 24
HOST_BLOCKS = 60


class PeerPool(LocalPool):
    """Pool with two peers, whose memory is host memory. Memory that a peer takes back, or that the
    host pool gives back, reads as zeros from then on.
    """

    def __init__(self, member: Member) -> None:
        size = member.block_bytes
        plan = PeerPlan({"near": PEER_BLOCKS * size, "far": PEER_BLOCKS * size}, backed=True)
        self.member = member
        super().__init__(Core(HOST_BLOCKS * size, peers=plan), member, peer_bytes_per_s=5e8)

    def lend(self, device: str, blocks: int) -> None:
        """Set the bytes that a peer lends from now on."""
        self.resize_peer(device, blocks * self.member.block_bytes)

    def shrink(self, blocks: int) -> None:
        """Set the budget of the host pool."""
        self.resize(blocks * self.member.block_bytes)

    @property
    def idle(self) -> bool:
        """True if no request seeks and no block is reserved or copied. Each call lets copies
        proceed.
        """
        self._shared.carry_out()
        state = self._shared.core.state()
        assert state.peers is not None
        tenants = [*state.tenants.values(), *state.peers.held.tenants.values()]
        return not any(own.pinned_bytes for own in tenants) and not self._answers
