"""Decision whether a SIGHUP tells of a terminal that is gone, or is meant for this process."""

from __future__ import annotations

import os
import signal


class HangUps:
    """Meaning of SIGHUP to this process, by how it was started. Make it before handlers are set.

    One that was started with SIGHUP ignored, as by nohup, takes none. One that had a terminal which
    is gone by now has to end. Any other was sent by somebody who means it.
    """

    def __init__(self) -> None:
        self.ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._had_terminal = _has_terminal()

    @property
    def terminal_is_gone(self) -> bool:
        """True if there was one when this was made, and is none now."""
        return self._had_terminal and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
