"""The device's primary context: the one that torch and every library of CUDA share.

torch's streams do not exist in any other context. It is current only inside our calls: they may
come from any thread, and a thread may work with another device in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cuda.bindings import driver as cu

from vmm.cuda_calls import call
from vmm.cuda_device import get_device
from vmm.driver import VmmError


class PrimaryContext:
    """Primary context of device `index`, retained until `close`. Raises `DeviceUnavailable` if
    there is no such device.
    """

    def __init__(self, index: int) -> None:
        self._device = get_device(index)
        self.handle = call(cu.cuDevicePrimaryCtxRetain, self._device)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current in the calling thread, and restore the previous one at the
        end.
        """
        call(cu.cuCtxPushCurrent, self.handle)
        try:
            yield
        finally:
            # If this is refused, our context stays current. That is better than to raise for a
            # call that has run, or to hide the error of one that has not.
            with suppress(VmmError):
                call(cu.cuCtxPopCurrent)

    def close(self) -> None:
        """Release the context."""
        call(cu.cuDevicePrimaryCtxRelease, self._device)
