"""A file that grows, as an engine's log does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

POLL_S = 0.2
PART = 1 << 16
"""Bytes that are read at a time."""


def followed(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Bytes of a file from here on, as it grows, until it is removed."""
    while True:
        while part := file.read(PART):
            yield part
        if not path.exists():
            return
        time.sleep(POLL_S)
