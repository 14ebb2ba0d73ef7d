"""A device server's side of the connection to its agent: the device's lock, the lease, and
orders.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from mirage.machines.asking import asked
from mirage.machines.seam import DeviceCall, MachineAway, StaleEpoch
from mirage.machines.tenure import Tenure
from mirage.machines.tether_messages import (
    FromTether,
    TetherAnswer,
    TetherAway,
    TetherCall,
    TetherEnd,
    TetherRenew,
    TetherStale,
    TetherTold,
    ToTether,
)
from mirage.wire import Broken, Channel

log = logging.getLogger(__name__)

LOOK_S = 0.5
ASKED_S = 5.0
"""Seconds in which a client that has connected must send its message."""


class DeviceServed(Exception):
    """Error: another process serves this device."""


class Tether:
    """Device server's end of the connection to its agent. It has the device's lock until the end of
    its `with` block, and sends this process SIGTERM when the lease is over.
    """

    def __init__(self, path: Path, epoch: int, lease_s: float) -> None:
        """Lock the device and listen at the socket `path`; the lock's file is beside it. Raises
        `DeviceServed` if another process has the lock, and `OSError` if the lock's file or the
        socket cannot be made.
        """
        self._lock = os.open(
            path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            self._listening = socket.socket(socket.AF_UNIX)
            self._listening.bind(str(path))
        except BlockingIOError:
            os.close(self._lock)
            raise DeviceServed(f"{path}: another process serves this device") from None
        except OSError:
            os.close(self._lock)
            raise
        path.chmod(0o600)
        self._listening.listen(16)
        self._listening.settimeout(LOOK_S)
        self._path, self._tenure = path, Tenure(epoch, lease_s, time.monotonic())
        self._changing = threading.Lock()
        self._admin: Path | None = None
        self._url, self._is_ready, self._sign = "", False, time.monotonic()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, name="mirage-tether", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the socket, then free the lock, so that the next server never shares the socket."""
        self._over.set()
        self._path.unlink(missing_ok=True)
        self._listening.close()
        os.close(self._lock)

    # -- what the server says -----------------------------------------------------------

    def listens(self, url: str, admin: Path) -> None:
        """Keep the URL at which the server listens, and the path of its admin socket, for the
        agent's questions.
        """
        self._url, self._admin = url, admin

    def beats(self) -> None:
        """Note that the server's event loop is alive. The agent kills a server whose loop has been
        silent for `hang_s`.
        """
        self._sign = time.monotonic()

    def write(self, url: str) -> None:
        """Mark the server as ready: all tenants that can start are ready. See `SaysReady`."""
        self._is_ready = True

    def remove(self) -> None:
        """Withdraw the mark that the server is ready."""
        self._is_ready = False

    # -- what it is told ----------------------------------------------------------------

    def _serve(self) -> None:
        while not self._over.is_set():
            with suppress(TimeoutError):
                try:
                    there = self._listening.accept()[0]
                except OSError as error:
                    if isinstance(error, TimeoutError):
                        raise
                    continue
                threading.Thread(target=self._hear, args=(there,), daemon=True).start()
            if not self._tenure.left_s(time.monotonic()):
                log.warning("the lease of this device server is over: it drains and ends")
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def _hear(self, there: socket.socket) -> None:
        there.settimeout(ASKED_S)
        channel: Channel[ToTether] = Channel(there, ToTether)
        try:
            with suppress(Broken):
                channel.say(self._answer(channel.wait()[0]))
        finally:
            channel.close()

    def _answer(self, message: ToTether) -> FromTether:
        if isinstance(message, TetherRenew):
            with self._changing:
                self._tenure.renew(message.lease_s, time.monotonic())
            return self._told()
        try:
            with self._changing:
                self._tenure.obeys(message.epoch)
        except StaleEpoch:
            return TetherStale(self._tenure.epoch)
        if isinstance(message, TetherEnd):
            os.kill(os.getpid(), signal.SIGTERM)
            return self._told()
        return self._called(message)

    def _called(self, message: TetherCall) -> FromTether:
        if self._admin is None:
            return TetherAway("it has not begun to listen")
        try:
            answer = asked(self._admin, DeviceCall(message.method, message.path, message.body))
        except MachineAway as error:
            return TetherAway(str(error))
        return TetherAnswer(answer.status, answer.body)

    def _told(self) -> TetherTold:
        now = time.monotonic()
        left_s, silent_s = self._tenure.left_s(now), now - self._sign
        return TetherTold(
            os.getpid(), self._tenure.epoch, left_s, self._url, self._is_ready, silent_s
        )
