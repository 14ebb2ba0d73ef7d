"""A process with roles that need no vLLM, which answers in forks: forks.py LISTENER.

With `itself` before it, it answers without forks, at an inherited socket: forks.py itself SOCKET.
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
    """Answer with the process id, and the number of answers that this process has given."""
    global made
    made += 1
    print("counted", flush=True)
    return {"pid": os.getpid(), "made": made, "told": os.environ.get("TOLD"), "said": question}


def numbers(question: int) -> dict[int, tuple[float, ...]]:
    """Return a large answer whose keys are numbers, which JSON could not carry."""
    return {1: tuple(map(float, range(question)))}


def leave(question: str) -> None:
    """Start a child that inherits all open files and sleeps for `question` seconds, and end before
    it.
    """
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
    """Refuse the model, in the form of `mirage.engine.probe`."""
    return {"tenant": question["tenant"], "refused": "by a fork"}


ROLES: Roles = {f.__name__: f for f in (count, numbers, leave, wait, fail, die, probe)}

if __name__ == "__main__":
    if sys.argv[1] == "itself":
        answer(ROLES)
    else:
        answer_in_forks(socket.socket(fileno=int(sys.argv[1])), ROLES)
