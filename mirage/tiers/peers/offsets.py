"""Memory of peers as offsets of one region, from which the pool cuts its slabs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mirage.tiers.blocks import Action, LendOrder, ReturnOrder
from mirage.tiers.holes import ByteRange
from mirage.tiers.peers.lease import Hints, Lease
from mirage.tiers.peers.peers import Peers
from mirage.units import align_up

POOL = "pool"
"""Name under which the pool holds leases."""


class LeasedOffsets:
    """Source of slabs in peers' memory: each slab is a lease, pinned while the slab exists.

    Devices follow one another in the region, the first at `start`. With `act`, a holder has the
    memory: it is told of each lease by `LendOrder` and `ReturnOrder`, in multiples of `granule`
    bytes, and a lease is not over before it was `returned`.
    """

    def __init__(
        self,
        devices: Mapping[str, int],
        start: int,
        *,
        backed: bool,
        granule: int = 1,
        act: Callable[[Action], None] | None = None,
    ) -> None:
        self.peers, self._hints = Peers(devices), Hints(POOL, backed=backed)
        self._granule, self._act = granule, act
        self.span = sum(devices.values())
        self.starts: dict[str, int] = {}
        """Offset of each device's first byte in the region, by the device's name."""
        for name, nbytes in devices.items():
            self.starts[name] = start
            start += nbytes
        self._end = start
        self._leases: dict[int, Lease] = {}
        """Leases by the offset of their slab's first byte in the region."""
        self._returning: set[int] = set()
        """Offsets of empty leases whose memory their holder has not released yet."""

    def watch(self, draining: Callable[[int], None]) -> None:
        """Set the function that is called when a peer wants the memory of a slab back, with the
        slab's offset (its first byte in the region)."""

        def begins(lease: Lease) -> None:
            if self._at(lease) not in self._returning:
                draining(self._at(lease))

        self.peers.on_revoke(POOL, lambda lease: None, begins)

    def resize(self, device: str, budget: int, order: Sequence[int]) -> None:
        """Set the bytes that a device lends. If they are too few for its leases, slabs are given up
        in `order` (offsets of slabs). Raise `ValueError` as `Peers.resize` does."""
        rank = {offset: place for place, offset in enumerate(order)}
        self.peers.resize(device, budget, lambda lease: rank.get(self._at(lease), 0))

    @property
    def sizes(self) -> list[int]:
        """Bytes of each free range."""
        return self.peers.sizes()

    def take(self, nbytes: int) -> int | None:
        """Lease `nbytes` bytes and return their offset; None if there is no room."""
        lease = self.peers.alloc(align_up(nbytes, self._granule), self._hints)
        if lease is None:
            return None
        self.peers.pin(lease)
        self._leases[self._at(lease)] = lease
        if self._act is not None:
            self._act(LendOrder(lease.device, ByteRange(self._at(lease), lease.nbytes)))
        return self._at(lease)

    def give(self, freed: ByteRange) -> None:
        """Give back a lease that `take` made; it holds nothing any more."""
        if self._act is None:
            self.returned(freed.offset)
            return
        lease = self._leases[freed.offset]
        self._returning.add(freed.offset)
        self._act(ReturnOrder(lease.device, ByteRange(freed.offset, lease.nbytes)))

    def returned(self, offset: int) -> None:
        """End an empty lease: its memory has been released."""
        lease = self._leases.pop(offset)
        self._returning.discard(offset)
        if self.peers.drains(lease):
            if self._hints.backed:
                self.peers.saved(lease)
            self.peers.unpin(lease)
        else:
            self.peers.unpin(lease)
            self.peers.free(lease)

    def lost(self, device: str) -> None:
        """Stop a device from lending: its leases drain, and their content is not saved."""
        for lease in [lease for lease in self._leases.values() if lease.device == device]:
            self.peers.recall(lease)
        self.peers.resize(device, 0)

    def failed(self, offset: int) -> None:
        """Revoke a lease for which there is no memory. From now on its device lends at most the
        bytes of its other leases."""
        lease = self._leases.get(offset)
        if lease is None:
            return
        self.peers.recall(lease)
        state = self.peers.state()[lease.device]
        held = state.held_bytes - (lease.nbytes if offset in self._leases else 0)
        self.peers.resize(lease.device, min(state.budget_bytes, held))

    def device(self, offset: int) -> str:
        """Return the device that an offset belongs to. Raise `ValueError` if there is none."""
        at = [name for name, start in self.starts.items() if start <= offset]
        if not at or offset >= self._end:
            raise ValueError(f"offset {offset} is no peer's")
        return at[-1]

    def _at(self, lease: Lease) -> int:
        return self.starts[lease.device] + lease.offset
