"""A process that answers each question in a fork of its own, and how it is asked.

What that process has imported, its forks have too: for vLLM that saves seven seconds each. A
question comes as one JSON object over a Unix socket, and so does the answer. Questions are answered
one after the other; nothing runs in the process itself but the wait for the next.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

Role = Callable[[Any], Any]
CHUNK = 1 << 20


class ForkEnded(Exception):
    """The fork ended without an answer; its log says why."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def serve(listener: socket.socket, roles: Mapping[str, Role]) -> None:
    """Answer until this process is killed. No other thread may run here: forks would lack it."""
    while True:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # one who asked and is gone needs no answer
            _answer(connection, roles)


def ask(
    address: Path,
    role: str,
    question: Any,
    log: Path,
    environment: Mapping[str, str] | None = None,
    waiting: Callable[[float], None] = lambda seconds: None,
    every_s: float = 0.5,
) -> Any:
    """What `role` says to `question`. What the fork prints goes to `log`.

    `environment` is added to that of the process; `waiting` hears the seconds so far. Raises
    `ForkEnded`, and `OSError` if the process itself is gone.
    """
    began = monotonic()
    request = {"role": role, "question": question, "log": str(log)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(address))
        connection.sendall(json.dumps(request | {"environment": dict(environment or {})}).encode())
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(every_s)
        said = _all(connection, lambda: waiting(monotonic() - began))
    if not said:
        raise ConnectionResetError("the process that was asked has ended")
    reply = json.loads(said)
    if "ended" in reply:
        raise ForkEnded(reply["ended"])
    return reply["answer"]


def _all(connection: socket.socket, waiting: Callable[[], None] = lambda: None) -> bytes:
    """All bytes until the other end says that there are no more."""
    parts: list[bytes] = []
    while True:
        try:
            part = connection.recv(CHUNK)
        except TimeoutError:
            waiting()
            continue
        if not part:
            return b"".join(parts)
        parts.append(part)


def _answer(connection: socket.socket, roles: Mapping[str, Role]) -> None:
    asked = json.loads(_all(connection))
    child = os.fork()
    if not child:
        os._exit(_become(connection, roles, asked))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        connection.sendall(json.dumps({"ended": code}).encode())


def _become(connection: socket.socket, roles: Mapping[str, Role], asked: Mapping[str, Any]) -> int:
    """In the fork: the answer, sent at once, and the exit code.

    The caller leaves by `os._exit`: there is nothing to tidy up, and the interpreter would take
    seconds for it.
    """
    try:
        os.environ.update(asked["environment"])
        _print_to(asked["log"])
        answer = roles[asked["role"]](asked["question"])
        connection.sendall(json.dumps({"answer": answer}, allow_nan=False).encode())
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _print_to(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
