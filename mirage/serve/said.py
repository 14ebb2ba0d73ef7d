"""Lines of progress for the person at the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

from mirage.serve.logs import SAID

_speaker = ["mirage"]


def speak_for(device: str) -> None:
    """Have each printed line begin with the name of a device, where several processes print."""
    _speaker[:] = ["mirage", device]


def say(line: str) -> None:
    """Progress, for the person at the terminal. A terminal that is gone is no reason to fail."""
    if SAID.handlers:
        SAID.info(line)
        return
    with suppress(OSError):
        print(f"{': '.join(_speaker)}: {line}", file=sys.stderr, flush=True)
