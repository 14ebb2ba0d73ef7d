"""The engine's end of the control socket.

A reader thread posts messages into the mailbox, a writer thread sends reports, so that the
engine never waits for the control server. When the server is gone (end of file), its engines
have no reason to live: the process is asked to terminate as if by a signal.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from contextlib import suppress
from math import inf

import msgspec

from mirage.engine.mailbox import Mailbox
from mirage.protocol import Alive, FromEngine, Hello, Shutdown, decode_to_engine, encode

logger = logging.getLogger("mirage.engine.agent")


class Agent:
    """Connects to the control server's Unix socket at `path`."""

    def __init__(self, path: str, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closing = False
        self.heard = -inf
        """When the control server was last heard: seconds of `time.monotonic`."""

    def start(self, hello: Hello) -> None:
        """Introduce the engine and begin to listen."""
        self.send(hello)
        for target in (self._read, self._write):
            threading.Thread(
                target=target, name=f"mirage-agent-{target.__name__}", daemon=True
            ).start()

    def send(self, message: FromEngine) -> None:
        """Hand a message to the writer thread; never blocks."""
        self._outgoing.put(encode(message))

    def close(self) -> None:
        """End both threads. Idempotent."""
        self._closing = True
        self.heard = -inf
        self._outgoing.put(None)
        with suppress(OSError):  # already disconnected
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    self._receive(line)
            except OSError as error:
                logger.warning("control socket failed error=%s", error)
            except Exception:
                # A message moved memory and failed. An engine that lived on would be deaf.
                logger.exception("control message failed")
        if not self._closing:
            logger.warning("conversation with the control server ended, pid=%d", os.getpid())
            self.close()
            os.kill(os.getpid(), signal.SIGTERM)

    def _receive(self, line: bytes) -> None:
        try:
            message = decode_to_engine(line)
        except msgspec.DecodeError as error:
            logger.error("control message ignored error=%s line=%r", error, line[:200])
            return
        self.heard = time.monotonic()
        if isinstance(message, Shutdown):
            self._closing = True
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if not isinstance(message, Alive):
            self.mailbox.post(message)

    def _write(self) -> None:
        while (line := self._outgoing.get()) is not None:
            try:
                self._socket.sendall(line)
            except OSError:
                return  # the reader sees the end of file and acts on it
