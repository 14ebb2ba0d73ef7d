"""A program that ends when its parent does, however that ends: ``python tied.py PARENT WORDS...``.

A process that is killed cannot end its children, and an engine that is left behind keeps the GPU's
memory from whatever runs next. So the kernel is asked to kill this process as soon as the thread
that started it is gone; that holds for the program in its place too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tied(words: Sequence[str]) -> list[str]:
    """The command line that runs `words` so, from the thread that will start it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def main(parent: str, *words: str) -> None:
    """Become the program. Nothing is begun if the parent has ended meanwhile."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(parent):
        os.execvp(words[0], words)


if __name__ == "__main__":
    main(*sys.argv[1:])
