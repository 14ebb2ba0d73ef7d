"""Memory of peers as offsets of one region, from which the pool cuts its slabs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mirage.tiers.holes import Range
from mirage.tiers.peers.lease import Hints, Lease
from mirage.tiers.peers.peers import Peers

POOL = "pool"
"""The pool's name as a holder."""


class LeasedOffsets:
    """A `mirage.tiers.slabs.Offsets`: each slab is a lease, pinned for as long as it is open.

    Devices lie one behind the other in the region, the first at `start`.
    """

    def __init__(self, devices: Mapping[str, int], start: int, *, backed: bool) -> None:
        self.peers, self._hints = Peers(devices), Hints(POOL, backed=backed)
        self.span = sum(devices.values())
        self._starts: dict[str, int] = {}
        for name, nbytes in devices.items():
            self._starts[name] = start
            start += nbytes
        self._leases: dict[int, Lease] = {}
        """By the first offset of their slab."""

    def watch(self, draining: Callable[[int], None]) -> None:
        """`draining` hears of the first offset of each slab whose memory is wanted back."""
        self.peers.on_revoke(POOL, lambda lease: None, lambda lease: draining(self._at(lease)))

    def resize(self, device: str, budget: int, order: Sequence[int]) -> None:
        """What a device lends: slabs go in `order` of their first offsets. Raises `ValueError`."""
        rank = {offset: place for place, offset in enumerate(order)}
        self.peers.resize(device, budget, lambda lease: rank.get(self._at(lease), 0))

    @property
    def sizes(self) -> list[int]:
        """Bytes of each free run."""
        return self.peers.sizes()

    def take(self, nbytes: int) -> int | None:
        """The offset of so many bytes; None if there is no room."""
        lease = self.peers.alloc(nbytes, self._hints)
        if lease is None:
            return None
        self.peers.pin(lease)
        self._leases[self._at(lease)] = lease
        return self._at(lease)

    def give(self, freed: Range) -> None:
        """All that `take` gave there holds nothing any more."""
        lease = self._leases.pop(freed.offset)
        if self.peers.drains(lease):
            if self._hints.backed:
                self.peers.saved(lease)
            self.peers.unpin(lease)
        else:
            self.peers.unpin(lease)
            self.peers.free(lease)

    def _at(self, lease: Lease) -> int:
        return self._starts[lease.device] + lease.offset
