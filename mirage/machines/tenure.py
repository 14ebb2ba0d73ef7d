"""Lease and epoch by which a device server obeys. Pure."""

from __future__ import annotations

from mirage.machines.seam import StaleEpoch


class Tenure:
    """Epoch and lease of a device server: it obeys the newest controller.

    A controller of any epoch that renews the lease keeps the server.
    """

    def __init__(self, epoch: int, lease_s: float, now: float) -> None:
        """`epoch` of the order that it was started by; the lease begins `now`, in seconds."""
        self.epoch, self._until = epoch, now + lease_s

    def obeys(self, epoch: int) -> None:
        """An order has come. Raises `StaleEpoch` if a newer controller has given one before."""
        if epoch < self.epoch:
            raise StaleEpoch(self.epoch)
        self.epoch = epoch

    def renew(self, lease_s: float, now: float) -> None:
        """The lease lasts for so long from now on, or longer if it does already."""
        self._until = max(self._until, now + lease_s)

    def left_s(self, now: float) -> float:
        """Seconds until it is over."""
        return max(0.0, self._until - now)
