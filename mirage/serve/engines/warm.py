"""Warm starts: engines are forked from a process that has imported vLLM.

That process has the environment of engines. A fork cannot change variables that libraries read when
they are imported, so an engine with another environment is started as a program of its own, and so
is each one while the process is not ready. vLLM reads the variables for adapters later: they may
differ.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic

from mirage.processes import asking
from mirage.processes.answering import LONGEST, Query, Reply
from mirage.processes.child import AdoptedChild, NewChild, start_program
from mirage.processes.pidfd import ProcessEnd
from mirage.processes.reaper_client import ReaperClient
from mirage.processes.stopped import watch_for_stops
from mirage.serve.launch.launcher import ADAPTING
from mirage.wire import Broken, Channel

logger = logging.getLogger("mirage.serve.engines.warm")

PROGRAM = (sys.executable, "-m", "mirage.engine.forkserver")
READY_ROLE, PROGRAM_ROLE = "ready", "program"
FORK_S, MARGIN_S = 10.0, 2.0
"""Seconds in which the process has to fork, after which it refuses; and further seconds to wait for
its answer.
"""
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Least and greatest seconds between the end of the forking process and the next start."""
ROOM = {"MIRAGE_ROOM_FOR_TITLES": "." * 4096}
"""Variable that makes room for a process title: a process can only overwrite what it began with,
and the title is an engine's command line.
"""


class ForkIsLate(Exception):
    """The forking process does not answer in time."""


class WarmStarts:
    """Process that has imported vLLM, in `environment`, with its socket at `address`.

    It is started immediately, accepts connections from then on, and ends with this process or by
    `close`.
    """

    def __init__(
        self, address: Path, environment: Mapping[str, str], log: Path, reaper: ReaperClient
    ) -> None:
        """`log` gets the output of the import. Each fork empties it, and writes into it until it
        runs its command.

        Raises `OSError` if the process cannot be started.
        """
        self.address, self._environment, self._log = address, dict(environment), log
        self._reaper = reaper
        self._looking = threading.Lock()
        self._process: subprocess.Popen[bytes]
        self._first: Channel[Reply] | None = None
        """Connection on which the process says that it has imported all; None after that."""
        self._begin()

    @property
    def pid(self) -> int:
        """Process id of the forking process."""
        return self._process.pid

    # -- forks --------------------------------------------------------------------------

    def start(self, command: list[str], environment: Mapping[str, str], log: Path) -> NewChild:
        """Start a Python command as a fork if that is possible now, else as a program.

        Before, `adopt_orphans` has to be called in this process. A forking process that does not
        answer in time is killed. The call takes about 50 ms, on a busy machine seconds: use a
        thread. Raises `OSError` if the command cannot be started.
        """
        if command[0] == sys.executable and self._is_same(environment) and self.is_ready():
            try:
                return AdoptedChild(self._fork(command, environment, log))
            except (OSError, asking.ForkEnded) as error:
                logger.warning("no warm start: %s (see %s)", error, self._log)
            except ForkIsLate as error:
                logger.warning("no warm start: %s", error)
                self._process.kill()
        return start_program(command, environment, log)

    def _is_same(self, environment: Mapping[str, str]) -> bool:
        """True if variables that differ from the forking process's are only read after the
        imports.
        """
        others = dict(environment.items() ^ self._environment.items())
        return others.keys() <= ADAPTING.keys()

    def _fork(self, command: list[str], environment: Mapping[str, str], log: Path) -> int:
        question = {
            "command": command,
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "out": str(log),
            "err": str(log),
            "until": monotonic() + FORK_S,
        }
        wait_s = FORK_S + MARGIN_S
        pid = asking.ask(
            self.address, PROGRAM_ROLE, question, self._log, waiting=_late, every_s=wait_s
        )
        assert isinstance(pid, int)
        return pid

    def is_ready(self) -> bool:
        """True if the process has imported vLLM, and is alive."""
        with self._looking:
            if self._process.poll() is not None:
                return False
            if self._first is not None and select.select([self._first], [], [], 0)[0]:
                self._first.close()
                self._first = None
            return self._first is None

    # -- the process --------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the process, from a thread that lives as long as this process: it ends with that
        thread.
        """
        self.address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("ab") as output:
            listener.bind(str(self.address))
            listener.listen()
            self._process = subprocess.Popen(
                [*PROGRAM, str(os.getpid()), str(listener.fileno())],
                env=ROOM | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[listener.fileno()],
            )
        self._reaper.began(self._process.pid)
        there = socket.socket(socket.AF_UNIX)
        self._first = Channel(there, Reply, longest=LONGEST)
        try:
            there.connect(str(self.address))
            self._first.say(Query(READY_ROLE, None, os.devnull))
        except (OSError, Broken):
            self.close()
            raise

    async def keep(self, hang_s: float, say: Callable[[str], None]) -> None:
        """Start another process whenever it ends, and kill one that is stopped (as by SIGSTOP) for
        `hang_s` seconds.

        `say` gets a line at each end. Never returns.
        """
        pause = PAUSE_S
        while True:
            watch_for_stops(self.pid, hang_s)
            begun = asyncio.get_running_loop().time()
            with suppress(ProcessLookupError):
                end = ProcessEnd(self.pid)
                await end.wait()
                end.close()
            self._over()
            say("the process that engines are forked from ended: starts are cold until one is up")
            lived_s = asyncio.get_running_loop().time() - begun
            pause = PAUSE_S if lived_s > LONGEST_PAUSE_S else min(pause * 2, LONGEST_PAUSE_S)
            await asyncio.sleep(pause)
            while not self._begins():
                await asyncio.sleep(LONGEST_PAUSE_S)

    def _begins(self) -> bool:
        """Start another process; False, with a warning, if that fails."""
        try:
            self._begin()
        except (OSError, Broken) as error:
            logger.warning("no process to fork engines from: %s", error)
            return False
        return True

    def close(self) -> None:
        """Kill the process; engines forked from it go on. Idempotent."""
        self._process.kill()
        self._over()
        self.address.unlink(missing_ok=True)

    def _over(self) -> None:
        self._process.wait()
        self._reaper.over(self._process.pid)
        if self._first is not None:
            self._first.close()
            self._first = None


def _late(seconds: float) -> None:
    raise ForkIsLate(f"the process to fork from does not answer in {seconds:.1f} s")
