"""Private folder with a lock on it, so that cleaners of temporary files leave it alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from mirage.serve.rundir.parent_folders import PRIVATE

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HeldFolder:
    """Folder of this process, with a BSD lock on it until `remove` or `let_go`.

    systemd-tmpfiles skips folders that are locked, with all that is in them. No other process can
    take the folder while this one lives.
    """

    def __init__(self, path: Path, lock: int) -> None:
        """`lock` is the descriptor that has the lock, which this object closes. Use `made` or
        `taken`.
        """
        self.path, self._lock = path, lock

    @classmethod
    def made(cls, base: str) -> HeldFolder:
        """Make a new folder in `base`, and lock it. Raises `OSError` if it cannot be made."""
        path = Path(tempfile.mkdtemp(prefix="mirage-", dir=base))
        return cls(path, _locked(path))

    @classmethod
    def taken(cls, path: Path) -> HeldFolder | None:
        """Lock a folder that a dead process left; None if it is gone, is locked by a process, or
        is not a private folder (mode 0700) of this user.
        """
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
        """Release the lock, and leave the folder as it is. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def mend(self) -> bool:
        """Make and lock the folder again if it is gone; true if it was. Raises `OSError` if it
        cannot be made."""
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
        """Remove the folder with its content, and release the lock. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.let_go()

    def _is_there(self) -> bool:
        """True if the folder at the path is the locked one."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._lock))
        except FileNotFoundError:
            return False


def _locked(folder: Path) -> int:
    """Descriptor of a folder, locked if the file system has locks."""
    descriptor = os.open(folder, FOLDER)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _take(folder: Path) -> None:
    """Make the folder, or take one that an engine has made there meanwhile. Raises `OSError` if it
    cannot be made, or another user's is there."""
    folder.mkdir(PRIVATE, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise FileExistsError(f"{folder} belongs to another user now")
    folder.chmod(PRIVATE)
