"""One process that has imported vLLM, kept during a profile: its forks answer questions."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mirage.config import Config
from mirage.processes import asking
from mirage.processes.interrupt import signals_wait
from mirage.serve.engines.errors import EngineFailed
from mirage.serve.launch import launcher
from mirage.serve.rundir.folders import RunDir
from mirage.tools.profile import children

MODULE = "mirage.engine.forkserver"
IN_THIS_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class Imported:
    """The process that has imported vLLM and answers at the socket `address`."""

    def __init__(self, address: Path) -> None:
        self.address = address

    def steps(self, question: Any, log: Path, waiting: Callable[[float], None]) -> Any:
        """Measurements of `mirage.engine.steptimes`, made in a fork. Raises `EngineFailed` if the
        fork ends without an answer, or the process itself has ended.
        """
        try:
            return asking.ask(self.address, "steptimes", question, log, IN_THIS_PROCESS, waiting)
        except asking.ForkEnded as ended:
            raise EngineFailed(children.why("mirage.engine.steptimes", ended.code, log)) from None
        except OSError:
            raise EngineFailed(f"the process that has imported vLLM ended: see {log}") from None


@contextmanager
def imported(config: Config, log: Path) -> Iterator[Imported]:
    """Start the process; it begins to import and may be asked immediately. At the end of the block
    it and its forks are killed.
    """
    with RunDir(None) as rundir, ExitStack() as ends:
        address = rundir.sockets / "vllm.sock"
        with socket.socket(socket.AF_UNIX) as listener, signals_wait():
            listener.bind(str(address))
            listener.listen()
            environment = launcher.environment(config, rundir)
            process = asking.start(["-m", MODULE, str(os.getpid())], listener, log, environment)
            ends.callback(asking.kill_group, process)
        with children.watched(process, *rundir.folders), ends.pop_all():
            yield Imported(address)
