"""A process that answers in forks, with roles that need no vLLM: forks.py LISTENER."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

from mirage.processes import forking

made = 0
"""Changed by forks alone, so every fork finds it 0."""


def count(question: Any) -> dict[str, Any]:
    """Says where it runs, and how often this process answered."""
    global made
    made += 1
    print("counted", flush=True)
    return {"pid": os.getpid(), "made": made, "told": os.environ.get("TOLD"), "said": question}


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


ROLES: dict[str, forking.Role] = {f.__name__: f for f in (count, wait, fail, die, probe)}

if __name__ == "__main__":
    forking.serve(socket.socket(fileno=int(sys.argv[1])), ROLES)
