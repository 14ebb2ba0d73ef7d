"""Processes of ours that answer questions: one asker's, or each question in a fork of its own.

A question names a role, a function of the process that answers. It comes over a Unix socket in the
form of `mirage.wire`, and so does the answer; `mirage.processes.asking` is the other end. Questions
are answered one after the other.

A process that answers in forks imports slow modules such as vLLM once, which saves each fork seven
seconds. The process itself only waits for the next question.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

import msgspec

from mirage.wire import Broken, Channel, Message

Role = Callable[[Any], Any]
Roles = Mapping[str, Role]
LONGEST = 2**28
"""Most bytes of a question or an answer, which may hold the times of many steps."""


class Query(Message, frozen=True):
    """A question. A fork adds `environment` to its own, and prints to the file `log`."""

    role: str
    asked: Any
    log: str = ""
    environment: dict[str, str] = msgspec.field(default_factory=dict)


class Answer(Message, frozen=True):
    """Answer of a child: numbers, strings, lists, and mappings with strings as keys."""

    value: Any


class ForkEnd(Message, frozen=True):
    """The fork ended without an answer, with this exit code."""

    code: int


Reply = Answer | ForkEnd


def answer(roles: Roles) -> None:
    """Answer the questions of one asker in this process, until the asker has gone.

    The socket is an inherited descriptor, whose number is the last word of the command line.
    """
    with closing(_channel(socket.socket(fileno=int(sys.argv[-1])))) as asker:
        for query in asker.until_end():
            asker.say(_answered(roles, query))


def answer_in_forks(listener: socket.socket, roles: Roles) -> None:
    """Answer one question of each connection, in a fork, until this process is killed.

    No other thread may run here: forks would lack it.
    """
    while True:
        with closing(_channel(listener.accept()[0])) as asker, suppress(Broken):
            _answer_in_fork(asker, roles)  # one who asked and is gone needs no answer


def _channel(there: socket.socket) -> Channel[Query]:
    return Channel(there, Query, longest=LONGEST)


def _answered(roles: Roles, query: Query) -> Answer:
    return Answer(msgspec.to_builtins(roles[query.role](query.asked), str_keys=True))


def _answer_in_fork(asker: Channel[Query], roles: Roles) -> None:
    query, _ = asker.wait()
    if not (child := os.fork()):
        os._exit(_become(asker, roles, query))
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        asker.say(ForkEnd(code))


def _become(asker: Channel[Query], roles: Roles, query: Query) -> int:
    """Send the answer from the fork, and return its exit code.

    The caller ends the fork by `os._exit`: the interpreter's clean-up would take seconds, and is
    not needed.
    """
    try:
        os.environ.update(query.environment)
        _print_to(query.log)
        asker.say(_answered(roles, query))
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
