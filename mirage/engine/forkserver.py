"""A process that has imported vLLM, and answers for `mirage profile` in forks of its own.

python -m mirage.engine.forkserver LISTENER

LISTENER is the descriptor of a listening Unix socket, see `mirage.processes.answering`. vLLM's
worker for a CPU is not imported here: it changes torch for the whole process, and is each
engine's own.
"""

from __future__ import annotations

import gc
import socket
import sys

import vllm.v1.attention.backends.cpu_attn
import vllm.v1.core.sched.async_scheduler
import vllm.v1.engine.llm_engine  # noqa: F401

from mirage.engine import executor, probe, steptimes  # noqa: F401
from mirage.processes.answering import Roles, answer_in_forks

ROLES: Roles = {"probe": probe.said, "steptimes": steptimes.measure}


def main() -> None:
    """Answer until killed."""
    gc.freeze()  # else each fork's first collection would write to, and so copy, all pages
    answer_in_forks(socket.socket(fileno=int(sys.argv[1])), ROLES)


if __name__ == "__main__":
    main()
