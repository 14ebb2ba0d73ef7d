"""Errors of a store of weights."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirage.config import ConfigError
from mirage.errors import CommandFailed
from mirage.units import sizes

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ROOM = "make room there, what has come is kept"

PATIENCE_S = 60.0
"""Seconds for which nothing may come, and no source be busy with others."""


class WeightsRefused(ConfigError):
    """A model of a store that cannot be had, for a reason that the user can remove."""


class WeightsFailed(CommandFailed):
    """Weights that did not come; the message is one line."""


@contextmanager
def writing(place: Path, what: str) -> Iterator[None]:
    """Writes into a store. Raises `WeightsRefused` for a full disk, `WeightsFailed` otherwise."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            why = error.strerror.lower() if error.strerror else str(error)
            raise WeightsRefused(f"{what}: no room at {place} ({why}): {ROOM}") from None
        where = error.filename or place
        raise WeightsFailed(f"{what}: {where}: {error.strerror or error}") from None


def check_room(place: Path, needed: int, what: str) -> None:
    """Raises `WeightsRefused` if the disk of a store has fewer than `needed` bytes free."""
    free = shutil.disk_usage(place).free
    if needed > free:
        wanted, there = sizes(needed, free)
        raise WeightsRefused(f"{what}: {wanted} are to come, {place} has {there} left: {ROOM}")
