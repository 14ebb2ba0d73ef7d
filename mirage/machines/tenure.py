"""Lease and epoch of a device server: how long it runs, and which controller it obeys. Pure."""

from __future__ import annotations

from mirage.machines.seam import StaleEpoch


class Tenure:
    """Epoch and lease of a device server: it obeys the newest controller.

    A controller of any epoch that renews the lease keeps the server.
    """

    def __init__(self, epoch: int, lease_s: float, now: float) -> None:
        """`epoch` is that of the order by which the server was started. The lease begins at `now`;
        both times in seconds.
        """
        self.epoch, self._until = epoch, now + lease_s

    def obeys(self, epoch: int) -> None:
        """Accept an order of the controller with this epoch, and keep the epoch. Raises
        `StaleEpoch` if a controller with a later epoch has given an order before.
        """
        if epoch < self.epoch:
            raise StaleEpoch(self.epoch)
        self.epoch = epoch

    def renew(self, lease_s: float, now: float) -> None:
        """Extend the lease to `lease_s` seconds from `now`, unless it lasts longer already."""
        self._until = max(self._until, now + lease_s)

    def left_s(self, now: float) -> float:
        """Seconds until the lease ends; 0 if it has ended."""
        return max(0.0, self._until - now)
