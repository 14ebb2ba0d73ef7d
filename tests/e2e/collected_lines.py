"""Lines of a process, collected from its pipe while it runs."""

from __future__ import annotations

import os
import select
import threading


class CollectedLines:
    """Reads a process's pipe in a thread, so that the pipe never fills up.

    `now` first reads what the pipe holds. So a test that has seen an effect of a process also gets
    the lines that the process wrote before that.
    """

    def __init__(self, pipe: int) -> None:
        """Reads a duplicate of the descriptor, because the test may close the pipe meanwhile."""
        self._pipe = os.dup(pipe)
        self._lock = threading.Lock()
        self._ended = False
        self._lines: list[str] = []
        self._rest = b""
        """Begin of a line that has not ended yet."""
        threading.Thread(target=self._collect, daemon=True).start()

    def now(self) -> list[str]:
        """All whole lines that the process has written until now; at the pipe's end also a last
        line without a line end.
        """
        self._take()
        return list(self._lines)

    def _collect(self) -> None:
        while not self._ended:
            self._is_readable(None)
            self._take()
        os.close(self._pipe)

    def _take(self) -> None:
        """Read all that the pipe has now, and split it into lines."""
        with self._lock:
            while not self._ended and self._is_readable(0):
                told = os.read(self._pipe, 1 << 16)
                self._ended = not told
                *lines, self._rest = (self._rest + told).split(b"\n")
                self._lines += [f"{line.decode(errors='replace')}\n" for line in lines]
            if self._ended and self._rest:
                self._lines.append(self._rest.decode(errors="replace"))
                self._rest = b""

    def _is_readable(self, timeout_ms: int | None) -> bool:
        """True if the pipe has something to read, or is at its end."""
        waiting = select.poll()
        waiting.register(self._pipe, select.POLLIN)
        return bool(waiting.poll(timeout_ms))
