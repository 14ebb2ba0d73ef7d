"""Program that ends when its parent does, however that ends: ``python tied.py PARENT WORDS...``.

A killed process cannot end its children, and an engine that is left behind keeps the GPU's memory
from the next program. So this process asks the kernel to kill it as soon as the thread that started
it is gone. The request also holds for the program that takes its place.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tied(words: Sequence[str]) -> list[str]:
    """Command line that runs `words` and is killed when its parent, this process, ends. Start it in
    a thread that lives as long as the program should: the kernel watches that thread.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def main(parent: str, *words: str) -> None:
    """Become the program `words`, unless the parent has ended meanwhile."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(parent):
        os.execvp(words[0], words)


if __name__ == "__main__":
    main(*sys.argv[1:])
