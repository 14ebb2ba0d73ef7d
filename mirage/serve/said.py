"""Lines of progress for the person at the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

from mirage.serve.logs import SAID


def say(line: str) -> None:
    """Progress, for the person at the terminal. A terminal that is gone is no reason to fail."""
    if SAID.handlers:
        SAID.info(line)
        return
    with suppress(OSError):
        print(f"mirage: {line}", file=sys.stderr, flush=True)
