"""A private folder that is held, so that cleaners of temporary files leave it alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from mirage.serve.places import PRIVATE


class HeldFolder:
    """A new folder in `base`, with a shared BSD lock on it from now to `remove`.

    systemd-tmpfiles passes over a folder that somebody has locked, and all that is in it. Raises
    `OSError` if it cannot be made.
    """

    def __init__(self, base: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="mirage-", dir=base))
        self._lock = _locked(self.path)

    def mend(self) -> bool:
        """Make it again if it is gone; whether it was. Raises `OSError`."""
        if self._is_there():
            return False
        _take(self.path)
        lock = _locked(self.path)
        os.close(self._lock)
        self._lock = lock
        return True

    def freshen(self) -> None:
        """It and what lies right in it was just used, for cleaners that look at times alone."""
        for path in (self.path, *self.path.iterdir()):
            with contextlib.suppress(OSError):  # it went just now
                os.utime(path, follow_symlinks=False)

    def remove(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _is_there(self) -> bool:
        """True if the folder of that name is the locked one."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._lock))
        except FileNotFoundError:
            return False


def _locked(folder: Path) -> int:
    """A descriptor with the lock; without one where the file system has none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _take(folder: Path) -> None:
    """Make it, or have what an engine has made anew under its name. Raises `OSError`."""
    folder.mkdir(PRIVATE, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise FileExistsError(f"{folder} belongs to another user now")
    folder.chmod(PRIVATE)
