"""Lines of progress for the user at the terminal, also at intervals while something takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mirage.serve.logs.logs import SAID

LOOKING = "looking at the models, before any engine starts"

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


@contextmanager
def telling(what: str, every_s: float) -> Iterator[None]:
    """Context in which a line every `every_s` seconds says that `what` goes on.

    A thread writes the lines, so that they come even while the code inside blocks.
    """
    begun, done = time.monotonic(), threading.Event()

    def tell() -> None:
        while not done.wait(every_s):
            say(f"{what}, for {time.monotonic() - begun:.0f} s")

    threading.Thread(target=tell, name="mirage-progress", daemon=True).start()
    try:
        yield
    finally:
        done.set()
