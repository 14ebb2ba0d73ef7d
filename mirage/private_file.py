"""A file that its owner alone may read, replaced as a whole."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

MODE = 0o600


def replace_private(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """Replace `path` with `data`: a reader finds the old bytes or all of the new ones.

    With `lasting` that also holds after a crash of the machine. Raises `OSError` if the file cannot
    be written; then the old one stays.
    """
    unfinished = path.with_name(f".{path.name}.new")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
    try:
        os.fchmod(handle, MODE)  # it may have been left by another writer
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise
    if not lasting:
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_private(path: Path, most_bytes: int) -> bytes:
    """Contents of a file that only this user can read and write.

    Raises `OSError`; `PermissionError` for a file of another user, one that others may access, one
    of more than `most_bytes`, or one that is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        seen = os.fstat(handle)
        ours = seen.st_uid == os.geteuid() and not seen.st_mode & 0o077
        if not (ours and stat.S_ISREG(seen.st_mode) and seen.st_size <= most_bytes):
            raise PermissionError(f"{path} is no private file of this user")
        return file.read(most_bytes)
