"""The engine's end of the control socket.

A reader thread posts messages into the mailbox, a writer thread sends reports, so that the
engine never waits for the control server. The writer waits for nothing of the engine, so its pulse
goes on during the longest step and stops with the process. When the server is gone (end of file),
its engines have no reason to live: the process is asked to terminate as if by a signal.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

import msgspec

from mirage.engine.mailbox import Mailbox
from mirage.protocol import (
    BEAT_S,
    Alive,
    Failed,
    FromEngine,
    Hello,
    Pulse,
    Shutdown,
    decode_to_engine,
    encode,
)
from vmm import faults

logger = logging.getLogger("mirage.engine.agent")

LAST_WORDS_S = 1.0
"""Seconds that the end of an engine waits until its reason is sent."""


class Agent:
    """Connects to the control server's Unix socket at `path`."""

    def __init__(self, path: str, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closing = False
        self._threads: list[threading.Thread] = []
        """The reader and the writer."""
        self.heard = -inf
        """When the control server was last heard: seconds of `time.monotonic`."""

    def start(self, hello: Hello, pulse: Callable[[], Pulse]) -> None:
        """Introduce the engine and begin to listen. `pulse` is called by the writer thread."""
        self._pulse = pulse
        self.send(hello)
        for target in (self._read, self._write):
            name = f"mirage-agent-{target.__name__}"
            self._threads.append(threading.Thread(target=target, name=name, daemon=True))
            self._threads[-1].start()

    def send(self, message: FromEngine) -> None:
        """Hand a message to the writer thread; never blocks."""
        self._outgoing.put(encode(message))

    def close(self, error: Exception | None = None) -> None:
        """End both threads. An engine that ends over an `error` says so first. Idempotent."""
        if error is not None and not self._closing:
            fault = faults.of(error)
            self.send(Failed(type(error).__name__, fault.name if fault else ""))
        self._closing = True
        self.heard = -inf
        self._outgoing.put(None)
        if error is not None and self._threads:
            self._threads[-1].join(LAST_WORDS_S)
        with suppress(OSError):  # already disconnected
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        fault: Exception | None = None
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    self._receive(line)
            except OSError as error:
                logger.warning("control socket failed error=%s", error)
            except Exception as error:
                # A message moved memory and failed. An engine that lived on would be deaf.
                logger.exception("control message failed")
                fault = error if faults.of(error) else None
        if not self._closing:
            logger.warning("conversation with the control server ended, pid=%d", os.getpid())
            self.close(fault)
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
        due = time.monotonic() + BEAT_S
        while True:
            line: bytes | None
            if (wait_s := due - time.monotonic()) <= 0:
                line, due = encode(self._pulse()), time.monotonic() + BEAT_S
            else:
                try:
                    line = self._outgoing.get(timeout=wait_s)
                except queue.Empty:
                    continue
            if line is None:
                return
            try:
                self._socket.sendall(line)
            except OSError:
                return  # the reader sees the end of file and acts on it
