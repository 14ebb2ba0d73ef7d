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
from math import inf

from mirage.engine.mailbox import Mailbox
from mirage.protocol import (
    BEAT_S,
    Alive,
    CoreFailed,
    FromEngine,
    Hello,
    Pulse,
    Shutdown,
    ToEngine,
)
from mirage.wire import Broken, Channel
from vmm import faults

logger = logging.getLogger("mirage.engine.agent")

LOOK_S = 0.001
"""Seconds between two passes of an idle engine, in which a message or a request may come."""
LAST_WORDS_S = 1.0
"""Seconds that the end of an engine waits until its reason is sent."""


class Agent:
    """Connects to the control server's Unix socket at `path`."""

    def __init__(self, path: str, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        there.connect(path)
        self._channel: Channel[ToEngine] = Channel(there, ToEngine)
        self._outgoing: queue.SimpleQueue[FromEngine | None] = queue.SimpleQueue()
        self._closing = False
        self._threads: list[threading.Thread] = []
        """The reader and the writer."""
        self.heard = -inf
        """When the control server was last heard: seconds of `time.monotonic`."""

    def last_heard(self) -> float:
        """`heard`."""
        return self.heard

    def start(
        self,
        hello: Hello,
        pulse: Callable[[], Pulse],
        unfinished: Callable[[], bool] = lambda: False,
    ) -> None:
        """Introduce the engine and begin to listen. `pulse` is called by the writer thread.

        While the engine is `unfinished` the reader thread goes on without a message, as if the
        control server said each time that it lives.
        """
        self._pulse, self._unfinished = pulse, unfinished
        self.send(hello)
        for target in (self._read, self._write):
            name = f"mirage-agent-{target.__name__}"
            self._threads.append(threading.Thread(target=target, name=name, daemon=True))
            self._threads[-1].start()

    def send(self, message: FromEngine) -> None:
        """Hand a message to the writer thread; never blocks."""
        self._outgoing.put(message)

    def close(self, error: Exception | None = None) -> None:
        """End both threads. An engine that ends over an `error` says so first. Idempotent."""
        if error is not None and not self._closing:
            fault = faults.of(error)
            self.send(CoreFailed(type(error).__name__, fault.name if fault else ""))
        self._closing = True
        self.heard = -inf
        self._outgoing.put(None)
        if error is not None and self._threads:
            self._threads[-1].join(LAST_WORDS_S)
        self._channel.shut()

    def _read(self) -> None:
        fault: Exception | None = None
        try:
            for message in self._channel.until_end():
                self._receive(message)
                while self._unfinished() and not self._closing and not self._channel.comes(LOOK_S):
                    self.mailbox.post(Alive())
        except Broken as error:
            logger.warning("the control server does not speak as agreed: %s", error)
        except Exception as error:
            # A message moved memory and failed. An engine that lived on would be deaf.
            logger.exception("control message failed")
            fault = error if faults.of(error) else None
        if not self._closing:
            logger.warning("conversation with the control server ended, pid=%d", os.getpid())
            self.close(fault)
            os.kill(os.getpid(), signal.SIGTERM)

    def _receive(self, message: ToEngine) -> None:
        self.heard = time.monotonic()
        if isinstance(message, Shutdown):
            self._closing = True
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.mailbox.post(message)

    def _write(self) -> None:
        due = time.monotonic() + BEAT_S
        while True:
            message: FromEngine | None
            if (wait_s := due - time.monotonic()) <= 0:
                message, due = self._pulse(), time.monotonic() + BEAT_S
            else:
                try:
                    message = self._outgoing.get(timeout=wait_s)
                except queue.Empty:
                    continue
            if message is None:
                return
            try:
                self._channel.say(message)
            except Broken:
                return  # the reader sees the end of file and acts on it
