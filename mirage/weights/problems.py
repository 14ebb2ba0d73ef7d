"""Errors of a store of weights, and checks of its disk."""

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
"""Seconds after which bringing fails if no chunk arrives and no source is busy with others."""


class WeightsRefused(ConfigError):
    """Error: a model cannot be had from a store, for a reason that the user can remove."""


class WeightsFailed(CommandFailed):
    """Error: weights could not be brought, stored or sent; the message is one line."""


@contextmanager
def writing(place: Path, what: str) -> Iterator[None]:
    """Context that turns an `OSError` into `WeightsRefused` if the disk is full, else into
    `WeightsFailed`. The message begins with `what`.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            why = error.strerror.lower() if error.strerror else str(error)
            raise WeightsRefused(f"{what}: no room at {place} ({why}): {ROOM}") from None
        where = error.filename or place
        raise WeightsFailed(f"{what}: {where}: {error.strerror or error}") from None


def check_room(place: Path, needed: int, what: str) -> None:
    """Raises `WeightsRefused`, with a message that begins with `what`, if the store's disk has
    fewer than `needed` bytes free."""
    free = shutil.disk_usage(place).free
    if needed > free:
        wanted, there = sizes(needed, free)
        raise WeightsRefused(f"{what}: {wanted} are to come, {place} has {there} left: {ROOM}")
