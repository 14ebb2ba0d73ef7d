"""Engine's end of the control socket.

A reader thread posts messages into the mailbox, a writer thread sends reports, so the engine never
waits for the control server. The writer does not wait for the engine's thread, so its pulse goes on
during the longest step and stops with the process. When the server is gone (end of file), the
engine goes on for the lease that it was told, and says hello to the next server that listens at the
socket. Without a lease, or after it, the process sends itself SIGTERM.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from math import inf

from mirage.engine.mailbox import Mailbox
from mirage.protocol import (
    BEAT_S,
    LEASE_MARGIN_S,
    Alive,
    CoreFailed,
    EngineLease,
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
"""Seconds for which the reader thread waits for a message before it posts `Alive` to an engine that
has unfinished work."""
LAST_WORDS_S = 1.0
"""Longest time in seconds for which the end of an engine waits until its reason is sent."""
KNOCK_S = 0.15, 0.25
"""Least and most seconds between two attempts to connect to another server."""
Outgoing = queue.SimpleQueue[FromEngine | None]


class Agent:
    """Engine's connection to the control server at the Unix socket `path`."""

    def __init__(self, path: str, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._path = path
        self._channel = _connected(path)
        self._outgoing: Outgoing = queue.SimpleQueue()
        self._closing = False
        self._lease_s = 0.0
        self._writer: threading.Thread | None = None
        self.heard = -inf
        """Time of the last message from the present control server, in seconds of
        `time.monotonic`; -inf before its first, and once its connection has ended."""

    def last_heard(self) -> float:
        """Return the time of the present control server's last message, in seconds of
        `time.monotonic`; -inf before its first, and once its connection has ended."""
        return self.heard

    def start(
        self,
        hello: Hello,
        pulse: Callable[[], Pulse],
        unfinished: Callable[[], bool] = lambda: False,
        alone: Callable[[], None] = lambda: None,
        again: Callable[[], Hello | None] = lambda: None,
    ) -> None:
        """Send `hello` and begin to listen. The writer thread calls `pulse` every `BEAT_S` seconds,
        and sends the result.

        While `unfinished` is true and no message arrives, the reader thread posts `Alive` into the
        mailbox again and again, so that the engine goes on. `alone` is called when the server has
        gone and the engine goes on by a lease. `again` is called when another server listens: it
        returns the first message for that server, or None if the engine shall end. Both are called
        with the engine held (`Mailbox.hold`), so that no step runs meanwhile.
        """
        self._pulse, self._unfinished = pulse, unfinished
        self._alone, self._again = alone, again
        self.send(hello)
        threading.Thread(target=self._read, name="mirage-agent-_read", daemon=True).start()
        self._begin_writing()

    def send(self, message: FromEngine) -> None:
        """Hand a message to the writer thread; never blocks."""
        self._outgoing.put(message)

    def close(self, error: Exception | None = None) -> None:
        """End both threads. An engine that ends because of an `error` reports it first, and waits
        up to `LAST_WORDS_S` seconds until that is sent. A second call does nothing."""
        if error is not None and not self._closing:
            fault = faults.of(error)
            self.send(CoreFailed(type(error).__name__, fault.name if fault else ""))
        self._closing = True
        self.heard = -inf
        self._outgoing.put(None)
        if error is not None and self._writer is not None:
            self._writer.join(LAST_WORDS_S)
        self._channel.shut()

    # -- one server after the other -------------------------------------------------------

    def _read(self) -> None:
        fault: Exception | None = None
        try:
            self._listen()
            while not self._closing and self._is_back():
                self._listen()
        except Exception as error:
            # A message moved memory and failed. An engine that lived on would be deaf.
            logger.exception("control message failed")
            fault = error if faults.of(error) else None
        if not self._closing:
            logger.warning("conversation with the control server ended, pid=%d", os.getpid())
            self.close(fault)
            os.kill(os.getpid(), signal.SIGTERM)

    def _listen(self) -> None:
        """Handle the messages of one server until its connection ends."""
        try:
            for message in self._channel.until_end():
                self._receive(message)
                while self._unfinished() and not self._closing and not self._channel.comes(LOOK_S):
                    self.mailbox.post(Alive())
        except Broken as error:
            logger.warning("the control server does not speak as agreed: %s", error)

    def _is_back(self) -> bool:
        """Wait for another server and greet it. True once that is done; False if the engine has no
        lease, if no server listens within the lease and its margin, or if the engine shall end.

        A server that ends the connection without a message does not count as heard, and begins no
        new lease.
        """
        if self._lease_s <= 0:
            return False
        if self.heard > -inf:
            self._until = time.monotonic() + self._lease_s + LEASE_MARGIN_S
            self.heard = -inf
            logger.warning("no control server: going on for %g s at most", self._lease_s)
            with self.mailbox.hold():
                self._alone()
        while not self._closing and time.monotonic() < self._until:
            time.sleep(random.uniform(*KNOCK_S))
            try:
                channel = _connected(self._path)
            except OSError:
                continue
            return self._says_hello(channel)
        return False

    def _says_hello(self, channel: Channel[ToEngine]) -> bool:
        """Go on with another server over `channel`, and greet it; False if the engine shall end.
        Messages that were not yet sent to the old server are dropped."""
        self._outgoing.put(None)  # ends the thread that writes to the old server
        with self.mailbox.hold():
            hello = self._again()
            self._channel.close()
            self._channel, self._outgoing = channel, queue.SimpleQueue()
            if hello is None or self._closing:
                return False
            self.send(hello)
        self._begin_writing()
        return True

    def _receive(self, message: ToEngine) -> None:
        self.heard = time.monotonic()
        if isinstance(message, Shutdown):
            self._closing = True
            os.kill(os.getpid(), signal.SIGTERM)
        elif isinstance(message, EngineLease):
            self._lease_s = message.seconds
        else:
            self.mailbox.post(message)

    # -- writing ------------------------------------------------------------------------

    def _begin_writing(self) -> None:
        mine = self._channel, self._outgoing
        name = "mirage-agent-_write"
        self._writer = threading.Thread(target=self._write, args=mine, name=name, daemon=True)
        self._writer.start()

    def _write(self, channel: Channel[ToEngine], outgoing: Outgoing) -> None:
        due = time.monotonic() + BEAT_S
        while True:
            message: FromEngine | None
            if (wait_s := due - time.monotonic()) <= 0:
                message, due = self._pulse(), time.monotonic() + BEAT_S
            else:
                try:
                    message = outgoing.get(timeout=wait_s)
                except queue.Empty:
                    continue
            if message is None:
                return
            try:
                channel.say(message)
            except Broken:
                return  # the reader sees the end of file and acts on it


def _connected(path: str) -> Channel[ToEngine]:
    """Return a new connection to the socket. Raise `OSError` if no server listens there."""
    there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        there.connect(path)
    except OSError:
        there.close()
        raise
    return Channel(there, ToEngine)
