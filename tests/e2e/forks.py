"""A process that answers in forks, with roles that need no vLLM: forks.py LISTENER.

With `itself` before it, it answers itself, at an inherited socket: forks.py itself SOCKET.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

from mirage.processes.answering import Roles, answer, answer_in_forks

made = 0
"""Changed by forks alone, so every fork finds it 0."""


def count(question: Any) -> dict[str, Any]:
    """Says where it runs, and how often this process answered."""
    global made
    made += 1
    print("counted", flush=True)
    return {"pid": os.getpid(), "made": made, "told": os.environ.get("TOLD"), "said": question}


def numbers(question: int) -> dict[int, tuple[float, ...]]:
    """Much, and not as JSON would have it."""
    return {1: tuple(map(float, range(question)))}


def leave(question: str) -> None:
    """It has children that have all its files open, and goes first."""
    if not (child := os.fork()):
        time.sleep(float(question))
    print(child, flush=True)
    os._exit(3)


def wait(question: float) -> str:
    time.sleep(question)
    return "waited"


def fail(question: str) -> None:
    raise ValueError(question)


def die(question: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def probe(question: dict[str, Any]) -> dict[str, Any]:
    """As `mirage.engine.probe` refuses."""
    return {"tenant": question["tenant"], "refused": "by a fork"}


ROLES: Roles = {f.__name__: f for f in (count, numbers, leave, wait, fail, die, probe)}

if __name__ == "__main__":
    if sys.argv[1] == "itself":
        answer(ROLES)
    else:
        answer_in_forks(socket.socket(fileno=int(sys.argv[1])), ROLES)
