"""A server, its successors from the same configuration file, and their processes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
from pathlib import Path

import psutil

from mirage.serve.admin.client import AdminClient
from tests.e2e.with_fakes import HERE

PR_SET_CHILD_SUBREAPER = 36
ROLES = {
    "router": "mirage.serve.router.process",
    "reaper": "reaper.py",
    "keeper": "mirage.keeper.process",
    "fork server": "mirage.engine.forkserver",
}
"""End of a word in the command line of the process that has each role."""
PARENT = "router's parent"
LEASE_S = 60.0


class Servers:
    """Servers of one configuration file, one after the other. This process adopts the processes
    that they leave.
    """

    def __init__(self, folder: Path, config: Path, program: list[str]) -> None:
        self._folder, self._command = folder, [*program, "serve", str(config)]
        self._number, self.url = 0, ""
        self.process: subprocess.Popen[bytes]
        self._environment = os.environ | {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": ""}
        self._environment |= {"FAKE_ENGINE": "obeys", "PYTHONPATH": str(HERE.parents[1])}
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self) -> None:
        """Start the next server, at the port of the last one."""
        self._number += 1
        port = self.url.rpartition(":")[2].strip("/") or "0"
        options = ["--port", port, "--ready-file", str(self._ready), "--lease", str(LEASE_S)]
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [*self._command, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def _ready(self) -> Path:
        return self._folder / f"ready-{self._number}.json"

    @property
    def said(self) -> Path:
        """File with the lines that the newest server has printed to stderr."""
        return self._folder / f"said-{self._number}"

    def is_ready(self) -> bool:
        """True once the newest server is ready. Raises `AssertionError` if it has ended."""
        assert self.process.poll() is None, self.said.read_text()
        if there := self._ready.exists():
            self.url = json.loads(self._ready.read_text())["url"]
        return there

    def family(self) -> dict[str, psutil.Process]:
        """Processes of the servers by role, for roles that have one process; ended
        ones are reaped.
        """
        found = {}
        if self.process.poll() is None:
            found["supervisor"] = psutil.Process(self.process.pid)
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    if process.ppid() == os.getpid() and process.pid != self.process.pid:
                        os.waitpid(process.pid, os.WNOHANG)
                elif role := _role(process):
                    found[role] = process
        return found

    def admin(self) -> AdminClient:
        """Client of the newest server's admin socket."""
        return AdminClient(next(self._folder.glob("mirage-*/admin-*.sock")))


def _role(process: psutil.Process) -> str:
    words = process.cmdline()
    if "--uds" in words:
        tenant = words[words.index("--served-model-name") + 1]
        return f"engine {tenant}" if process.parent() is None or not _is_core(process) else ""
    for role, end in ROLES.items():
        if any(word.endswith(end) for word in words):
            forked = role == "router" and end not in (process.parent() or process).cmdline()
            return PARENT if forked else role
    return ""


def _is_core(process: psutil.Process) -> bool:
    """True for an engine's core: its parent is an engine's API server."""
    parent = process.parent()
    return parent is not None and "--uds" in parent.cmdline()
