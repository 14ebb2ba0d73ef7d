"""One folder per `mirage serve` that holds all it writes: sockets, logs, caches."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

LONGEST_BASE = 50
"""Unix socket paths end at 107 characters; vLLM adds up to 41 to this folder's name."""


def beside(control_socket: Path) -> Path:
    """The depot's socket in the same folder."""
    return control_socket.with_name("depot.sock")


def tiers_beside(control_socket: Path) -> Path:
    """The host pool's socket in the same folder."""
    return control_socket.with_name("tiers.sock")


class RunDir:
    """A private folder that is gone when the block ends.

    Logs lie inside, or in `log_dir` (made if missing) if they shall outlive the run. Raises
    `OSError` if that cannot be made.
    """

    def __init__(self, log_dir: Path | None = None) -> None:
        self.keeps_logs = log_dir is not None
        if log_dir is not None:  # first, for it may fail
            log_dir.mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix="mirage-", dir=self.base()))
        self.logs = (log_dir or self.path / "logs").absolute()
        self.logs.mkdir(exist_ok=True)
        self.temporary = self.path / "t"
        self.temporary.mkdir()

    @staticmethod
    def base() -> str:
        """Where it lies: the folder for temporary files, if its name is short."""
        base = tempfile.gettempdir()
        return base if len(base) <= LONGEST_BASE else "/tmp"

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def depot_socket(self) -> Path:
        return beside(self.control_socket)

    @property
    def tier_socket(self) -> Path:
        return tiers_beside(self.control_socket)

    def engine_socket(self, index: int) -> Path:
        """Numbered, not named: tenant names may be long and hold slashes."""
        return self.path / f"{index}.sock"

    def log(self, tenant: str) -> Path:
        return self.logs / f"{quote(tenant, safe='')}.log"

    def remove(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()
