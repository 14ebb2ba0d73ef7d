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

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HeldFolder:
    """A folder of this process, with a BSD lock on it until `remove`.

    systemd-tmpfiles passes over a folder that somebody has locked, and all that is in it. Nobody
    else can have it as long as this process lives.
    """

    def __init__(self, path: Path, lock: int) -> None:
        """Takes over the descriptor of the `lock`. See `made` and `taken`."""
        self.path, self._lock = path, lock

    @classmethod
    def made(cls, base: str) -> HeldFolder:
        """A new one in `base`. Raises `OSError` if it cannot be made."""
        path = Path(tempfile.mkdtemp(prefix="mirage-", dir=base))
        return cls(path, _locked(path))

    @classmethod
    def taken(cls, path: Path) -> HeldFolder | None:
        """A folder that a dead process left, now locked. None if in use, not ours, or gone."""
        try:
            lock = os.open(path, FOLDER)
        except OSError:
            return None
        try:
            found = os.fstat(lock)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == PRIVATE:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(path, lock)
        except OSError:
            pass
        os.close(lock)
        return None

    def let_go(self) -> None:
        """Leave it to others as it is. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

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
        """Touch the folder and its entries, for cleaners that look at times alone."""
        for path in (self.path, *self.path.iterdir()):
            with contextlib.suppress(OSError):  # it went just now
                os.utime(path, follow_symlinks=False)

    def remove(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.let_go()

    def _is_there(self) -> bool:
        """True if the folder of that name is the locked one."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._lock))
        except FileNotFoundError:
            return False


def _locked(folder: Path) -> int:
    """A descriptor with the lock; without one where the file system has none."""
    descriptor = os.open(folder, FOLDER)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _take(folder: Path) -> None:
    """Make it, or have what an engine has made anew under its name. Raises `OSError`."""
    folder.mkdir(PRIVATE, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise FileExistsError(f"{folder} belongs to another user now")
    folder.chmod(PRIVATE)
