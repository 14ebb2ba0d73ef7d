"""Lines of progress for the user at the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

from mirage.serve.logs import SAID

_speaker = ["mirage"]


def speak_for(device: str) -> None:
    """Let each printed line begin with a device's name, since several processes print."""
    _speaker[:] = ["mirage", device]


def say(line: str) -> None:
    """Print or log a line of progress for the user; errors of the terminal are ignored."""
    if SAID.handlers:
        SAID.info(line)
        return
    with suppress(OSError):
        print(f"{': '.join(_speaker)}: {line}", file=sys.stderr, flush=True)
