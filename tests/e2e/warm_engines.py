"""A process that forks engines, itself a fork of this process, which has imported vLLM."""

from __future__ import annotations

import os
import socket

import setproctitle

from mirage.engine import forks, forkserver


def serve_in_fork(listener: socket.socket) -> int:
    """Start the server that forks engines, in a fork; return its process id. It ends when this
    process does.
    """
    parent = os.getpid()
    if child := os.fork():
        return child
    try:
        forks.let_go(lambda mode: True, keep=listener.fileno())
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        setproctitle.setproctitle("warm engines")
        forkserver.answer(listener, parent)
    finally:
        os._exit(1)
