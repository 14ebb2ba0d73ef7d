"""A `mirage serve` that is started for one run, and always ended afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from mirage.errors import CommandFailed
from mirage.processes.interrupt import signals_wait
from mirage.processes.reaper_client import ReaperClient
from mirage.tools.replay.policies import ReplayVariant

READY_S = 900.0
"""Seconds in which a server must be ready; otherwise the run fails."""
POLL_S = 0.2
PATIENCE = ((signal.SIGINT, 60.0), (signal.SIGTERM, 20.0))
"""Signals that ask the server to end, and the seconds after each before the next, stronger one."""
ENDED_AS_ASKED = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)
ERROR = "mirage: error: "
"""Prefix of the line in which `mirage serve` reports an error."""


class ServerError(CommandFailed):
    """The server did not start, ended too soon, or does not answer; the message is one line."""


def serve_command(
    config: Path, variant: ReplayVariant, ready_file: Path, memory_bytes: int | None = None
) -> list[str]:
    """The command line of a server on a free port that writes its address to `ready_file`.

    `memory_bytes` overrides the configuration's device memory.
    """
    serve = [sys.executable, "-m", "mirage", "serve", str(config)]
    # A tenant that is missing would make its requests fail, and the comparison worthless. Who
    # measures knows no root of the certificate, and is on the same machine.
    own = ["--port", "0", "--ready-file", str(ready_file), "--all-or-nothing", "--lease", "0"]
    own.append("--no-tls")
    memory = [] if memory_bytes is None else ["--memory", str(memory_bytes)]
    tiers = [] if variant.tiers else ["--no-tiers"]
    return [*serve, "--policy", str(variant.policy), *own, *memory, *tiers]


class Server:
    """A context manager: inside it the server's process runs, in a session of its own.

    The separate session keeps the terminal's Ctrl-C from it: the replay decides when it ends. The
    server's output goes to `log`. If the replay is killed, its reaper kills the server, whose own
    reaper ends the engines.
    """

    def __init__(
        self,
        config: Path,
        variant: ReplayVariant,
        log: Path,
        memory_bytes: int | None = None,
        more: Sequence[str] = (),
    ) -> None:
        """`more` are further words of the command line of `serve_command`."""
        self._config = config
        self._variant = variant
        self._log = log
        self._memory_bytes = memory_bytes
        self._more = more

    def __enter__(self) -> Server:
        with ExitStack() as ends:
            with signals_wait():
                self._start(ends)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()

    async def ready(self, waiting: Callable[[float], None]) -> str:
        """URL of the server, once the server has written its ready file.

        Until then `waiting` is called again and again with the seconds waited so far. Raises
        `ServerError` if the server ends first or takes longer than `READY_S`.
        """
        start = monotonic()
        while (url := self._address()) is None:
            if self._process.poll() is not None:
                raise ServerError(self._last_words("did not start"))
            if monotonic() - start > READY_S:
                raise ServerError(
                    f"mirage serve was not ready within {READY_S:g} s: see {self._log}"
                )
            waiting(monotonic() - start)
            await asyncio.sleep(POLL_S)
        return url

    async def death(self) -> ServerError:
        """Wait until the server has ended by itself; return an error that describes it."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        handle = os.pidfd_open(self._process.pid)
        try:
            loop.add_reader(handle, ended.set)
            await ended.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        return ServerError(self._last_words("ended during the replay"))

    def _address(self) -> str | None:
        try:
            return str(json.loads(self._ready_file.read_bytes())["url"])
        except (FileNotFoundError, ValueError):
            return None  # not there yet, or half written

    def _last_words(self, what: str) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        said = [line for line in lines if line] or ["it said nothing"]
        errors = [line.removeprefix(ERROR) for line in said if line.startswith(ERROR)]
        return f"mirage serve --policy {self._variant.policy} {what}: {(errors or said)[-1]}"

    def _start(self, ends: ExitStack) -> None:
        """Start the server; `ends` will end it, and remove the folder of its ready file."""
        folder = Path(tempfile.mkdtemp(prefix="mirage-replay-"))
        self._ready_file = folder / "ready.json"
        reaper = ends.enter_context(ReaperClient(folder))
        command = serve_command(self._config, self._variant, self._ready_file, self._memory_bytes)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *self._more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        ends.callback(reaper.over, self._process.pid)
        ends.callback(self._stop)
        reaper.began(self._process.pid)

    def _stop(self) -> None:
        """Ask the server to end, ask again, then kill its process group, unless it has ended as it
        was asked to. A second Ctrl-C leads to the kill immediately.
        """
        code = self._process.poll()
        try:
            for number, patience_s in PATIENCE:
                if code is None:
                    self._process.send_signal(number)
                    code = self._wait(patience_s)
        finally:
            if self._process.poll() not in ENDED_AS_ASKED:
                self._kill_group()

    def _wait(self, patience_s: float) -> int | None:
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def _kill_group(self) -> None:
        """Kill the remaining processes of the server's group: a server that ended badly may leave
        engines behind.
        """
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()
