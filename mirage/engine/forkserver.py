"""A process that has imported vLLM, and answers for `mirage profile` in forks of its own.

python -m mirage.engine.forkserver LISTENER

LISTENER is the descriptor of a listening Unix socket, see `mirage.processes.forking`. vLLM's worker
for a CPU is not imported here: it changes torch for the whole process, and is each engine's own.
"""

from __future__ import annotations

import gc
import socket
import sys

import vllm.v1.attention.backends.cpu_attn
import vllm.v1.core.sched.async_scheduler
import vllm.v1.engine.llm_engine  # noqa: F401

from mirage.engine import executor, probe, steptimes  # noqa: F401
from mirage.processes import forking

ROLES: dict[str, forking.Role] = {"probe": probe.said, "steptimes": steptimes.measure}


def main() -> None:
    """Answer until killed."""
    gc.freeze()  # else each fork's first collection would write to, and so copy, all pages
    forking.serve(socket.socket(fileno=int(sys.argv[1])), ROLES)


if __name__ == "__main__":
    main()
