"""Parent folders for the folders of a run, as systemd, the desktop or the user name them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LONGEST_BASE = 50
"""Most bytes of a parent folder's path: a socket's path may have 107, and a run's folder with
vLLM's names in it takes up to 57 of them.
"""
PRIVATE = 0o700


class Places(NamedTuple):
    """Parent folders for a run's folders: one for its sockets, one for all other files. `named` is
    the environment variable that names `files`."""

    files: str
    sockets: str
    named: str = "TMPDIR"


def places() -> Places:
    """Parent folders that the environment names.

    Both are the first folder in systemd's ``RUNTIME_DIRECTORY`` that can be used. Without one,
    sockets are in ``XDG_RUNTIME_DIR`` if that is a private folder of this user, and all other files
    are in the folder for temporary files (``/tmp`` if the path of that is too long), because a
    user's memory file system is too small for them. Raises `OSError` if no folder for temporary
    files can be written.
    """
    given = os.environ.get("RUNTIME_DIRECTORY", "").split(":")
    if (runtime := _first_usable(given)) is not None:
        return Places(runtime, runtime, "RUNTIME_DIRECTORY")
    files = tempfile.gettempdir()
    if not _is_short(files):
        files = "/tmp"
    users = _first_usable([os.environ.get("XDG_RUNTIME_DIR", "")])
    return Places(files, users if users is not None and _is_private(users) else files)


def _first_usable(folders: Iterable[str]) -> str | None:
    return next((folder for folder in folders if _is_usable(folder)), None)


def _is_usable(folder: str) -> bool:
    writable = os.W_OK | os.X_OK
    return folder.startswith("/") and _is_short(folder) and os.access(folder, writable)


def _is_short(folder: str) -> bool:
    return len(os.fsencode(folder)) <= LONGEST_BASE


def _is_private(folder: str) -> bool:
    """True if the folder belongs to this user and no other user can enter it."""
    found = Path(folder).stat()
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == PRIVATE
