"""Copies of one tenant's adapters, from which its engine loads.

vLLM may unload an adapter and read its files again, in the middle of a step: they have to be the
files that were declared, and if they are missing the engine ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

from mirage.serve.adapting.allowed import FILES, check_allowed
from mirage.serve.adapting.desired import DIGITS
from mirage.units import MIB


class AdapterCopies:
    """Copies of adapters under `folder`, each in a folder named by its digest."""

    def __init__(self, folder: Path, allowed: Sequence[Path]) -> None:
        """`allowed` are the folders from which adapters may be loaded."""
        self._folder, self._allowed = folder, allowed

    def at(self, digest: str) -> Path:
        """Folder of the copy with that digest."""
        return self._folder / digest

    def take(self, source: Path) -> str:
        """Copy the adapter in `source`, and return the digest of its files. A second copy of the
        same content is deleted again.

        Returns when the files are copied: use a thread. Raises `ValueError` for an adapter that may
        not be loaded, `OSError` for files that cannot be read or written.
        """
        check_allowed(source, self._allowed)
        self._folder.mkdir(parents=True, exist_ok=True)
        made = Path(mkdtemp(prefix="new-", dir=self._folder))
        try:
            hashed = sha256()
            for name in FILES:
                hashed.update(_copied(source / name, made / name))
            digest = hashed.hexdigest()[:DIGITS]
            if not self.at(digest).exists():
                made.rename(self.at(digest))
            return digest
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def keep(self, digests: Collection[str]) -> None:
        """Remove all copies but those with these digests."""
        if self._folder.is_dir():
            for copy in self._folder.iterdir():
                if copy.name not in digests:
                    shutil.rmtree(copy, ignore_errors=True)


def _copied(source: Path, to: Path) -> bytes:
    """Copy a file; return its SHA-256. Raises `OSError` if it cannot be read, or the copy exists or
    cannot be written.
    """
    hashed = sha256()
    with source.open("rb") as file, to.open("xb") as copy:
        while part := file.read(MIB):
            hashed.update(part)
            copy.write(part)
    return hashed.digest()
