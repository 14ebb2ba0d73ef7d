"""Folders of one `mirage serve`, which contain all that it writes: sockets, logs, caches."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Self
from urllib.parse import quote

from mirage.processes.interrupt import signals_wait
from mirage.serve.rundir.locked_folder import HeldFolder
from mirage.serve.rundir.parent_folders import places

RECORD = "run.json"
"""File name of `RunDir.record`."""
ADMIN_SOCKETS = "admin-*.sock"
"""Pattern for the file names of `RunDir.admin_socket`."""
OF_SERVERS = "tiers.sock", "peer-*.sock", ADMIN_SOCKETS
"""Patterns for sockets that a server can only make where no file has that name."""


def tiers_beside(control_socket: Path) -> Path:
    """Path of the host pool's socket, beside the control socket."""
    return control_socket.with_name("tiers.sock")


def socket_name(kind: str, name: str) -> str:
    """File name for the socket of something with this name, which may be long and contain slashes.

    It has at most 40 bytes, as `parent_folders.LONGEST_BASE` requires. No two names have the same
    file name.
    """
    shown = re.sub(r"[^A-Za-z0-9]", "-", name)[:12]
    return f"{kind}-{shown}-{sha256(name.encode()).hexdigest()[:12]}.sock"


class RunDir:
    """Private folders of a run, made when the `with` block begins and removed at its end: one, or
    two if sockets have their own (`places`).

    Logs are in the first folder, or in `log_dir`, which is made if missing and outlives the run.
    Entering raises `OSError` if a folder cannot be made. A signal that ends the command meanwhile
    leaves no folder.
    """

    def __init__(
        self, log_dir: Path | None = None, held: Sequence[HeldFolder] | None = None
    ) -> None:
        """`held` are the locked folders of a run that a killed server left, the one with sockets
        last; None makes new ones.
        """
        self.keeps_logs = log_dir is not None
        self._log_dir = log_dir
        self._held = list(held or ())
        self._ours = held is None

    def _make(self) -> None:
        if self._log_dir is not None:  # first, for it may fail
            self._log_dir.mkdir(parents=True, exist_ok=True)
        if self._ours:
            where = places()
            self._held.append(HeldFolder.made(where.files))
            if where.sockets != where.files:
                self._held.append(HeldFolder.made(where.sockets))
        self.path, self.sockets = self._held[0].path, self._held[-1].path
        self.logs = (self._log_dir or self.path / "logs").absolute()
        self.temporary, self.cache = self.path / "t", self.path / "cache"
        self.rpc = self.sockets / "t"
        """Folder for vLLM's own sockets."""
        if not self._ours:
            self._unlisten()
        self.mend()

    @property
    def folders(self) -> list[Path]:
        """Folders of the run, the one with sockets last."""
        return [held.path for held in self._held]

    @property
    def owned(self) -> list[Path]:
        """Folders that are removed with this process; none while they are those of a run that a
        killed server left.
        """
        return self.folders if self._ours else []

    @property
    def control_socket(self) -> Path:
        return self.sockets / "control.sock"

    @property
    def record(self) -> Path:
        """File in which another server finds the processes of this one if it is killed."""
        return self.sockets / RECORD

    @property
    def tier_socket(self) -> Path:
        return tiers_beside(self.control_socket)

    @property
    def warm_socket(self) -> Path:
        """Socket of the process that engines are forked from."""
        return self.sockets / "warm.sock"

    @property
    def router_socket(self) -> Path:
        """Socket at which the router connects to get its table."""
        return self.sockets / "router.sock"

    @property
    def inner_socket(self) -> Path:
        """Socket at which the router asks for answers that only the supervisor has."""
        return self.sockets / "inner.sock"

    def admin_socket(self, port: int) -> Path:
        """Socket for operators of the server whose router listens on `port`."""
        return self.sockets / f"admin-{port}.sock"

    def engine_socket(self, tenant: str) -> Path:
        return self.sockets / socket_name("engine", tenant)

    def log(self, tenant: str) -> Path:
        return self.logs / f"{quote(tenant, safe='')}.log"

    def adapters(self, tenant: str) -> Path:
        """Folder for copies of the tenant's adapters; it is not made here."""
        return self.path / f"adapters-{quote(tenant, safe='')}"

    def forget(self, tenant: str) -> None:
        """Remove a tenant's socket and adapters, and its log unless logs are kept."""
        self.engine_socket(tenant).unlink(missing_ok=True)
        shutil.rmtree(self.adapters(tenant), ignore_errors=True)
        if not self.keeps_logs:
            self.log(tenant).unlink(missing_ok=True)

    def mend(self) -> list[Path]:
        """Make missing folders again; return their paths. Raises `OSError` if that fails."""
        made = [held.path for held in self._held if held.mend()]
        for folder in (self.logs, self.temporary, self.cache, self.rpc):
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                made.append(folder)
        return made

    def freshen(self) -> None:
        """Renew the times of the folders and of their entries, so that cleaners see them as in use.
        Raises `OSError` if a folder is missing."""
        for held in self._held:
            held.freshen()

    def takes(self) -> None:
        """Make the folders that a killed server left this run's own: the end of the `with` block
        removes them.
        """
        self._ours = True

    def remove(self) -> None:
        """Remove the folders, or only release their locks if they are those of a run that a killed
        server left.

        Idempotent.
        """
        for held in self._held:
            if self._ours:
                held.remove()
            else:
                held.let_go()

    def _unlisten(self) -> None:
        """Remove the sockets of a process that has ended."""
        for names in OF_SERVERS:
            for path in self.sockets.glob(names):
                path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.remove)
            with signals_wait():
                self._make()
            undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()
