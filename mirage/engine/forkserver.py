"""Process that has imported vLLM and forks others that need not import it: engines of `mirage
serve` start so.

    python -m mirage.engine.forkserver PARENT LISTENER

LISTENER is the descriptor of a listening Unix socket, see `mirage.processes.answering`. The process
ends with PARENT, the process that started it; if PARENT ends during the imports, it ends after
them. vLLM's worker for a CPU is not imported here: it changes torch for the whole process, so each
engine imports it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys

import setproctitle
import vllm.entrypoints.openai.api_server
import vllm.v1.attention.backends.cpu_attn
import vllm.v1.core.sched.async_scheduler
import vllm.v1.engine.async_llm
import vllm.v1.engine.llm_engine  # noqa: F401

from mirage.engine import executor, forks, probe, scheduler, steptimes  # noqa: F401
from mirage.processes.answering import Roles, answer_in_forks

READY = "ready"
"""Role that answers True once everything is imported."""
ROLES: Roles = {
    "probe": probe.said,
    "steptimes": steptimes.measure,
    forks.ROLE: forks.begin_program,
    READY: lambda _: True,
}
PR_SET_PDEATHSIG = 1


def answer(listener: socket.socket, parent: int) -> None:
    """Answer the questions of `ROLES` in forks until this process is killed, at the latest when
    process `parent`, which started it, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it ended before
    gc.freeze()  # else each fork's first collection would write to, and so copy, all pages
    answer_in_forks(listener, ROLES)


def main() -> None:
    """Answer at the socket whose descriptor the command line names."""
    setproctitle.getproctitle()  # finds its room in the environment as it was
    answer(socket.socket(fileno=int(sys.argv[2])), int(sys.argv[1]))


if __name__ == "__main__":
    main()
