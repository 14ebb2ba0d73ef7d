"""Memory of peers by lease: `alloc`, `free`, `on_revoke` (Harvest). Pure: no I/O, no clock.

Nothing is lent beyond a device's budget. A budget that falls revokes leases, in this order:

1. drain: the holder is told (`draining`), the lease cannot be pinned any more, pins end;
2. a backed lease waits until its holder has `saved` its content;
3. invalidate: the lease is stale and its bytes are free;
4. callback.

Each revoked lease is called back once. A lease that its holder freed, or whose holder has ended, is
never called back. Callbacks may call anything here; they come one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from mirage.tiers.peers.device import DeviceState, Loan, PeerDevice
from mirage.tiers.peers.lease import Hints, Lease, StaleLease, StillPinned

Callback = Callable[[Lease], None]


def _nothing(lease: Lease) -> None:
    """Do nothing: callback of a holder that does not want to be told."""


ANYWHERE = Hints()
_DEAF = (_nothing, _nothing)


class Peers:
    """All peers. `devices` has the bytes of each by its name, all of which may be lent at first."""

    def __init__(self, devices: Mapping[str, int]) -> None:
        self._devices = {name: PeerDevice(nbytes) for name, nbytes in devices.items()}
        self._callbacks: dict[str, tuple[Callback, Callback]] = {}
        """Callbacks of each holder: for the begin and for the end of a revocation."""
        self._numbers = 0
        self._due: deque[tuple[str, bool, Lease]] = deque()
        """Calls that are due: the holder, True if its revocation is over, and the lease."""
        self._calling = False
        self.revocations = 0
        """Number of leases that were taken back."""

    def on_revoke(self, holder: str, callback: Callback, draining: Callback = _nothing) -> None:
        """Set a holder's callbacks: `draining` is called with a lease when its revocation begins,
        `callback` when it is over."""
        self._callbacks[holder] = (draining, callback)

    def alloc(self, nbytes: int, hints: Hints = ANYWHERE) -> Lease | None:
        """Lease `nbytes` bytes at the start of the smallest free range that they fit into, on the
        device in `hints` or else on any; None if there is no room.

        Raise `ValueError` for sizes that are not positive, and for unknown devices.
        """
        if nbytes <= 0:
            raise ValueError(f"{nbytes} bytes: a lease has a positive size")
        names = self._devices if hints.device is None else [self._known(hints.device)]
        found = [(hole, name) for name in names if (hole := self._devices[name].fit(nbytes))]
        if not found:
            return None
        hole, name = min(found, key=lambda pair: pair[0].nbytes)
        self._numbers += 1
        lease = Lease(name, hole.offset, nbytes, self._numbers)
        self._devices[name].lend(Loan(lease, hints.holder, hints.backed))
        return lease

    def free(self, lease: Lease) -> None:
        """Give a lease back, also while it drains. Raise `StaleLease` if it is gone, `StillPinned`
        while it is in use."""
        if self._loan(lease).pins:
            raise StillPinned(f"{lease}: {self._loan(lease).pins} copies are under way")
        self._devices[lease.device].drop(lease)

    def pin(self, lease: Lease) -> bool:
        """Begin one use of a lease's memory; False if it drains or is gone."""
        loan = self._devices[lease.device].loans.get(lease.number)
        if loan is None or loan.draining:
            return False
        loan.pins += 1
        return True

    def unpin(self, lease: Lease) -> None:
        """End one use of a lease's memory. Raise `StaleLease` if it is gone, another `ValueError`
        if it is not pinned."""
        loan = self._loan(lease)
        if not loan.pins:
            raise ValueError(f"{lease}: it is not pinned")
        loan.pins -= 1
        self._settle(loan)

    def saved(self, lease: Lease) -> None:
        """Note that the content has another copy, or is not wanted. Raise `StaleLease` if the lease
        is gone.

        A revocation then need not wait for a copy.
        """
        loan = self._loan(lease)
        loan.saved = True
        self._settle(loan)

    def drains(self, lease: Lease) -> bool:
        """True if the lease is being revoked. Raise `StaleLease` if it is gone."""
        return self._loan(lease).draining

    def resize(
        self, device: str, budget: int, rank: Callable[[Lease], int] = lambda lease: 0
    ) -> None:
        """Set a device's budget in bytes; leases beyond it are revoked, those with a low `rank`
        first. Raise `ValueError` for an unknown device, or if it has fewer bytes."""
        mine = self._devices[self._known(device)]
        if not 0 <= budget <= mine.capacity:
            raise ValueError(f"{budget} bytes for peer {device!r}: it has {mine.capacity}")
        mine.budget = budget
        for loan in mine.to_revoke(rank):
            loan.draining = True
            self._call(loan, over=False)
            self._settle(loan)

    def recall(self, lease: Lease) -> None:
        """Revoke one lease, whatever the budget, without saving its content. Raise `StaleLease` if
        it is gone."""
        loan = self._loan(lease)
        loan.saved = True
        if not loan.draining:
            loan.draining = True
            self._call(loan, over=False)
        self._settle(loan)

    def ended(self, holder: str) -> None:
        """Note that all processes of a holder have surely ended: its leases are freed, and none of
        its callbacks is called any more, not even for a revocation that has begun."""
        self._callbacks.pop(holder, None)
        self._due = deque(due for due in self._due if due[0] != holder)
        for device in self._devices.values():
            for loan in [loan for loan in device.loans.values() if loan.holder == holder]:
                device.drop(loan.lease)

    @property
    def budget(self) -> int:
        """Bytes that may be lent, summed over all devices."""
        return sum(device.budget for device in self._devices.values())

    @property
    def largest(self) -> int:
        """Most bytes that one device may lend: no lease is larger."""
        return max((device.budget for device in self._devices.values()), default=0)

    def sizes(self) -> list[int]:
        """Return the bytes of each free range."""
        return [size for device in self._devices.values() for size in device.holes.sizes]

    def state(self) -> dict[str, DeviceState]:
        """Return the state of each device."""
        return {name: device.state() for name, device in self._devices.items()}

    def _settle(self, loan: Loan) -> None:
        """Invalidate a loan if nothing prevents it any longer, and call its holder back."""
        lease = loan.lease
        device = self._devices[lease.device]
        if loan.over and device.loans.get(lease.number) is loan:
            device.drop(lease)
            self.revocations += 1
            self._call(loan, over=True)

    def _call(self, loan: Loan, *, over: bool) -> None:
        """Call the holder of a loan back: that its revocation begins, or that it is `over`. Calls
        that become due in a callback follow it."""
        self._due.append((loan.holder, over, loan.lease))
        if self._calling:
            return
        self._calling = True
        try:
            while self._due:
                holder, over, lease = self._due.popleft()
                if over or lease.number in self._devices[lease.device].loans:
                    self._callbacks.get(holder, _DEAF)[over](lease)
        finally:
            self._calling = False

    def _loan(self, lease: Lease) -> Loan:
        loan = self._devices[lease.device].loans.get(lease.number)
        if loan is None:
            raise StaleLease(f"{lease}: it was freed or revoked")
        return loan

    def _known(self, device: str) -> str:
        if device not in self._devices:
            known = ", ".join(map(repr, self._devices)) or "none"
            raise ValueError(f"no peer is named {device!r}: there is {known}")
        return device
