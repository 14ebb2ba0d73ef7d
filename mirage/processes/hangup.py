"""Decision whether a SIGHUP tells of a terminal that is gone, or is meant for this process."""

from __future__ import annotations

import os
import signal


class HangUps:
    """Meaning of SIGHUP to this process, by how it was started. Create before handlers are set.

    A process that was started with SIGHUP ignored, as by nohup, ignores it. For a process whose
    terminal has gone it means: end. Otherwise somebody has sent it on purpose.
    """

    def __init__(self) -> None:
        self.ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._had_terminal = _has_terminal()

    @property
    def terminal_is_gone(self) -> bool:
        """True if this process had a terminal when this object was made, and has none now."""
        return self._had_terminal and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
