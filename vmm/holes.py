"""Memory of a file that is given back to the operating system: at once, or by a thread beside.

To free memory takes the kernel as long as to unmap it. Both can be done at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from vmm import libc


class Holes:
    """Holes in the file behind descriptor `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._thread: ThreadPoolExecutor | None = None
        self._begun: list[Future[None]] = []

    def punch(self, offset: int, nbytes: int) -> None:
        """Free these bytes of the file, inside of `beside` by its end. Raises `OSError`."""
        if self._thread is None:
            libc.punch(self._fd, offset, nbytes)
        else:
            self._begun.append(self._thread.submit(libc.punch, self._fd, offset, nbytes))

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Inside, a thread punches; at the end all is free. Raises its `OSError`."""
        with ThreadPoolExecutor(1, "vmm-holes") as self._thread:
            try:
                yield
                self.settle()
            finally:
                self._thread = None

    def settle(self) -> None:
        """Wait until all that was punched is free. Raises `OSError`."""
        begun, self._begun = self._begun, []
        for each in begun:
            each.result()
