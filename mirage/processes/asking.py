"""Questions to processes that run `mirage.processes.answering`: a child, or one at an address."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from mirage.processes.answering import LONGEST, ForkEnd, Query, Reply
from mirage.processes.interrupt import signals_wait
from mirage.wire import Broken, Channel

Waiting = Callable[[float], None]
"""Function that is called now and then with the seconds waited so far; an exception that it raises
ends the wait.
"""
EVERY_S = 0.5


class ForkEnded(Exception):
    """Error: the fork ended without an answer; its log says why."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def nobody_waits(seconds: float) -> None:
    """A `Waiting` that does nothing."""


def ask(
    address: Path,
    role: str,
    asked: Any,
    log: Path,
    environment: Mapping[str, str] | None = None,
    waiting: Waiting = nobody_waits,
    every_s: float = EVERY_S,
) -> Any:
    """Ask the process at `address`; return the answer of its fork, once the fork has ended.

    The fork's output goes to `log`, and `environment` is added to its variables. `waiting` is
    called every `every_s` seconds. Raises `ForkEnded` if the fork ends without an answer, and
    `OSError` if the process at `address` is gone.
    """
    query = Query(role, asked, str(log), dict(environment or {}))
    there = socket.socket(socket.AF_UNIX)
    with closing(_channel(there)) as channel:
        there.connect(str(address))
        try:
            channel.say(query)
            reply = _reply(channel, waiting, every_s)
            list(channel.until_end())  # the fork has ended then, and what it began is an orphan
        except Broken as error:
            raise ConnectionResetError(f"the process that was asked: {error}") from None
    if isinstance(reply, ForkEnd):
        raise ForkEnded(reply.code)
    return reply.value


class AskedChild:
    """Child process that answers questions, until `over` or `kill` ends it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel[Reply]) -> None:
        self.process, self._channel = process, channel

    def ask(self, role: str, asked: Any, waiting: Waiting = nobody_waits) -> Any:
        """Answer of the child's function `role` to `asked`; `waiting` is called with the seconds
        waited so far.

        Raises `Broken` if the child ends without an answer.
        """

        def lives(seconds: float) -> None:
            if self.process.poll() is not None:  # its children may have the socket open
                raise Broken("it has ended")
            waiting(seconds)

        self._channel.say(Query(role, asked))
        reply = _reply(self._channel, lives, EVERY_S)
        assert not isinstance(reply, ForkEnd), "it answers itself"
        return reply.value

    def over(self, waiting: Waiting = nobody_waits) -> int:
        """Close the connection, wait until the child ends by that, and return its exit code.

        `waiting` is called with the seconds waited so far. Idempotent.
        """
        self._channel.close()
        began = monotonic()
        while True:
            try:
                return self.process.wait(EVERY_S)
            except subprocess.TimeoutExpired:
                waiting(monotonic() - began)

    def kill(self) -> None:
        """Kill the child with all of its process group (SIGKILL), and wait for it. Idempotent."""
        self._channel.close()
        kill_group(self.process)


@contextmanager
def asked_child(
    words: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[AskedChild]:
    """Context with a Python program that calls `answering.answer`, in its own process group.

    At the end of the block the connection is closed, so the program ends; that is awaited, and what
    is left of its group is killed. If the block raises, a signal's exception too, the whole group
    is killed immediately: the program may have children.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with closing(_channel(ours)) as channel, ExitStack() as ends:
        with theirs, signals_wait():
            child = AskedChild(start(words, theirs, log, environment), channel)
            ends.callback(child.kill)
        yield child
        child.over()


def start(
    words: Sequence[str], inherited: socket.socket, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a Python program that leads a process group; its output goes to `log`.

    The last word of its command line is the number of the socket that it inherits.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, *words, str(inherited.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            process_group=0,
            pass_fds=[inherited.fileno()],
        )


def kill_group(leader: subprocess.Popen[bytes]) -> None:
    """Kill a child, with all of the process group that it leads, and wait for it. Idempotent."""
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def _channel(there: socket.socket) -> Channel[Reply]:
    return Channel(there, Reply, longest=LONGEST)


def _reply(channel: Channel[Reply], waiting: Waiting, every_s: float) -> Reply:
    """Wait for a reply, and call `waiting` every `every_s` seconds.

    Raises `Broken`, and what `waiting` raises.
    """
    began = monotonic()
    while (heard := channel.next()) is None:
        if select.select([channel], [], [], every_s)[0]:
            channel.read()
        else:
            waiting(monotonic() - began)
    return heard[0]
