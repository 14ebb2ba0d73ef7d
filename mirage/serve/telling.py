"""Log lines at intervals while something takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mirage.serve.said import say

LOOKING = "looking at the models, before any engine starts"


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
