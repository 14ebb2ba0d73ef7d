"""Folders in which those of a run are made: by systemd, the desktop or the user."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LONGEST_BASE = 50
"""Bytes of its name: a socket's path ends at 107, and vLLM adds up to 41 to a run's folder."""
PRIVATE = 0o700


class Places(NamedTuple):
    """Parent folders for a run's folders; `named` is the variable that named the first."""

    files: str
    sockets: str
    named: str = "TMPDIR"


def places() -> Places:
    """Folders that the environment names.

    All lies in the first of systemd's ``RUNTIME_DIRECTORY`` that can be used. Without one, sockets
    lie in ``XDG_RUNTIME_DIR`` and the rest in the folder for temporary files, as a memory file
    system of a user's is too small for it. Raises `OSError` if there is no such folder.
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
    """True if it is ours and nobody else can enter it."""
    found = Path(folder).stat()
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == PRIVATE
