"""Process that answers one `JudgeQuestion`, from its standard input to its standard output.

It computes for seconds while the event loop that started it serves, and ends with that process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import msgspec

from mirage.control.placement.deciding import PlacementDecision
from mirage.serve.machine.judge_question import JudgeQuestion, decided

PR_SET_PDEATHSIG = 1
NICE = 5
"""Niceness of the process, so that engines get the processors first."""


def main() -> None:
    """Answer the one question of the process that started this one, and end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(NICE)
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=JudgeQuestion)
    sys.stdout.buffer.write(msgspec.msgpack.encode(decided(question, time.monotonic)))


def answer_of(told: bytes) -> PlacementDecision | None:
    """Decision in the output of a judge's process; None if its time was over first. Raises
    `msgspec.DecodeError` for any other output."""
    return msgspec.msgpack.decode(told, type=PlacementDecision | None)


if __name__ == "__main__":
    main()
