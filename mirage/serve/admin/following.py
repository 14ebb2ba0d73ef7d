"""Reading of a file that grows, such as an engine's log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

POLL_S = 0.2
PART = 1 << 16
"""Most bytes that are read at a time."""


def followed(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Bytes of a file from its present position on, as it grows, until `path` is removed."""
    while True:
        while part := file.read(PART):
            yield part
        if not path.exists():
            return
        time.sleep(POLL_S)
