"""Fake engines as forks of a process that has imported their code. A fake engine that starts as a
program computes for half a second first.

The process is a fork of the server, from before the server's first thread. Like those of a warm
start, its forks are orphans, which the server has adopted. Like a program, each waits for `begin`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import fake_engine
from forked import Passed, become

from mirage.processes.child import AdoptedChild, NewChild, Start, start_program
from mirage.processes.exits import end_as_program

LONGEST = 1 << 17
"""Longest message to the process that forks, in bytes."""


class HeldFork(AdoptedChild):
    """A fake engine that waits for `begin`, and ends if this process ends before that."""

    def __init__(self, pid: int, gate: int) -> None:
        """`gate` is the writing end of the pipe on which the engine waits."""
        super().__init__(pid)
        self._gate = gate

    def begin(self) -> None:
        """Let the engine run; nothing happens if it has ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._gate, b"\n")
        os.close(self._gate)


def starts() -> Start:
    """Fork the process that forks engines, which ends with this one; return a function that starts
    fake engines as its forks, and other commands as programs. With FAKE_PROGRAMS all are programs:
    /proc has the environment that a program was given, and not a fork's.
    """
    if "FAKE_PROGRAMS" in os.environ:
        return start_program
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        _fork_them(theirs)
    theirs.close()

    def start(command: list[str], environment: Mapping[str, str], log: Path) -> NewChild:
        if command[:2] != [sys.executable, fake_engine.__file__]:
            return start_program(command, environment, log)
        gate, opens = os.pipe()
        answer, answers = socket.socketpair()
        with log.open("ab") as output, answer:
            told = json.dumps([command[1:], dict(environment), str(Path.cwd())]).encode()
            with answers:
                socket.send_fds(ours, [told], [output.fileno(), gate, answers.fileno()])
            os.close(gate)
            return HeldFork(int.from_bytes(answer.recv(8), "little"), opens)

    return start


def _fork_them(asked: socket.socket) -> None:
    """Fork an engine for each message, until the server has ended. Never returns."""
    os.setsid()
    os.closerange(3, asked.fileno())
    os.closerange(asked.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    tracker = resource_tracker._resource_tracker  # each engine begins one of its own
    tracker._fd = tracker._pid = None  # type: ignore[attr-defined]
    while True:
        told, (output, gate, answers), _, _ = _message(asked)
        pid = _orphan()
        if not pid:
            asked.close()
            os.close(answers)
            _begin(json.loads(told), output, gate)
        os.write(answers, pid.to_bytes(8, "little"))
        for file in (output, gate, answers):
            os.close(file)


def _message(asked: socket.socket) -> tuple[bytes, list[int], int, Any]:
    message = socket.recv_fds(asked, LONGEST, 3)
    if not message[0]:
        os._exit(0)
    return message


def _orphan() -> int:
    """Fork a process whose parent has ended; return its number here, and 0 in it."""
    hears, tells = os.pipe()
    if not (between := os.fork()):
        if pid := os.fork():
            os.write(tells, pid.to_bytes(8, "little"))
            os._exit(0)
        os.close(hears)
        os.close(tells)
        return 0
    os.waitpid(between, 0)
    pid = int.from_bytes(os.read(hears, 8), "little")
    os.close(hears)
    os.close(tells)
    return pid


def _begin(told: tuple[list[str], dict[str, str], str], output: int, gate: int) -> None:
    """Be the engine once its start has begun. Never returns."""
    os.setsid()
    if not os.read(gate, 1):
        os._exit(1)
    os.close(gate)
    end_as_program(lambda: become(*told, {1: Passed(output), 2: Passed(output)}))
