"""Agent of one device: it starts or adopts a device server outside its process tree, renews its
lease, and ends it.

The agent's state is in a folder of its machine, so the next agent continues from there.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from mirage.machines.outside import TetherClient, start_outside
from mirage.machines.seam import DeviceAnswer, DeviceCall, MachineAway, ServerCannot, StaleEpoch
from mirage.machines.tether_messages import TetherTold
from mirage.private_file import replace_private
from mirage.processes.marks import ProcessMark, mark_of

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""Seconds between two renewals of the server's lease."""
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Seconds from a start without a sign of life to the next start: at first, and at most. They are
doubled with each such start.
"""
REFUSES = b"mirage: error: "
"""Beginning of the line with which a server ends that cannot start."""
IMPORT_S = 120.0
"""Seconds in which a started server must give its first sign of life, before it is killed."""


class AgentOrder(msgspec.Struct, frozen=True):
    """Order that an agent follows: the epoch of its controller, and the server to run."""

    epoch: int
    lease_s: float
    """Seconds for which the server goes on without an agent."""
    hang_s: float
    """Seconds of silence after which the server counts as hung, and is killed."""
    program: tuple[str, ...]
    """Arguments for Python that run the server; the order's file, the socket, the epoch and the
    lease are appended.
    """
    order: bytes
    """Content of the file with the server's order."""


class OutsideAgent:
    """Watchdog of one server process (of a device, or of a machine's router): a thread starts or
    adopts the process, renews its lease, and kills it if it hangs.

    It obeys the last order. The order is in the folder, so that a restarted agent goes on with it.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is the device's folder on this machine, made if missing. Raises `OSError` if it
        cannot be made.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file, self._log = folder / "agent.json", folder / "server.log"
        self._given, self._socket = folder / "order.json", folder / "s.sock"
        self._client = TetherClient(self._socket)
        self._order: AgentOrder | None = None
        self._told: TetherTold | None = None
        self._lock, self._over = threading.Lock(), threading.Event()
        self._started = 0.0
        """Monotonic time of the last start that gave no sign of life yet; 0 if there is none."""
        self._child: ProcessMark | None = None
        """Server's process that was started last; None before the first start."""
        self._logged, self._why = 0, ""
        """Bytes of the log at that start, and the line with which the last server ended before it
        gave a sign of life.
        """
        self._pause_s = PAUSE_S
        self._heard = time.monotonic()
        with suppress(OSError, msgspec.DecodeError):
            self._order = msgspec.json.decode(self._file.read_bytes(), type=AgentOrder)
        threading.Thread(target=self._keep, name="mirage-agent", daemon=True).start()

    def obeys(self, order: AgentOrder) -> None:
        """Adopt an order: a running server goes on, and the next one is started by this order.
        Raises `StaleEpoch` if a newer controller has given orders, and `OSError` if the order
        cannot be written.
        """
        with self._lock:
            self._check(order.epoch)
            if order != self._order:
                replace_private(self._file, msgspec.json.encode(order))
                self._order = order
                self._logged, self._why = self._log_bytes(), ""

    def call(self, epoch: int, call: DeviceCall) -> DeviceAnswer:
        """Send a request to the device server's admin socket. Raises `StaleEpoch` if a newer
        controller has given orders, `MachineAway` if the server does not answer, and `ServerCannot`
        if it does not because the server that was started last has refused to start.
        """
        self._check(epoch)
        try:
            return self._client.call(epoch, call)
        except MachineAway:
            if self._why:
                raise ServerCannot(self._why) from None
            raise

    def end(self, epoch: int) -> None:
        """Make the server drain and end, and forget the order, so that no other server starts. A
        server that does not answer goes on until its lease ends. Raises `StaleEpoch` if a newer
        controller has given orders.
        """
        with self._lock:
            self._check(epoch)
            self._order = None
            self._file.unlink(missing_ok=True)
        with suppress(MachineAway):
            self._client.end(epoch)

    def told(self) -> TetherTold | None:
        """State of the server at the last renewal of its lease; None if it did not answer."""
        return self._told

    def _check(self, epoch: int) -> None:
        known = max(
            0 if self._order is None else self._order.epoch,
            0 if self._told is None else self._told.epoch,
        )
        if epoch < known:
            raise StaleEpoch(known)

    # -- the server ---------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._over.wait(BEAT_S):
            with self._lock:
                order = self._order
                if order is None:
                    continue
                try:
                    self._beat(order)
                except OSError as error:
                    log.error("no server can be started in %s (%s)", self._file.parent, error)

    def _beat(self, order: AgentOrder) -> None:
        """Renew the server's lease, or kill or start a server. Raises `OSError` if no server can be
        started.
        """
        now = time.monotonic()
        try:
            told = self._told = self._client.renew(order.lease_s)
        except MachineAway:
            self._told = None
            if (pid := self._client.pid()) is not None:  # it listens, and does not answer
                if now - self._heard > order.hang_s:
                    self._kill(pid)
            elif not self._begins(now):
                if self._started:
                    self._why = self._refusal()
                if now - self._started > self._pause_s:
                    self._start(order, now)
            return
        self._why = ""
        self._started, self._pause_s, self._heard = 0.0, PAUSE_S, now
        if told.url and told.silent_s > order.hang_s:  # before, models may be fetched
            self._kill(told.pid)

    def _begins(self, now: float) -> bool:
        """True while the process that was started last lives and has given no sign of life: it
        imports its modules. After `IMPORT_S` seconds it counts as hung, and is killed.
        """
        child = self._child
        if not self._started or child is None or mark_of(child.pid) != child:
            return False
        if now - self._started >= IMPORT_S:
            self._kill(child.pid)
        return True

    def _start(self, order: AgentOrder, now: float) -> None:
        """Start a server. If another server holds the device's lock, the new one refuses and
        ends.
        """
        if self._started:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._started = self._heard = now
        self._logged = self._log_bytes()
        replace_private(self._given, order.order, lasting=False)
        words: Sequence[str] = (*order.program, str(self._given), str(self._socket))
        told = (str(order.epoch), f"{order.lease_s:g}")
        pid = start_outside((*words, *told), self._log, os.environ)
        self._child = mark_of(pid)
        log.info("a server was started in %s: process %d", self._file.parent, pid)

    def _log_bytes(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _refusal(self) -> str:
        """Line with which the server that was started last has refused to start; else empty."""
        lines: list[bytes] = []
        with suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._logged)
            lines = [one for one in file.read().splitlines() if one.startswith(REFUSES)]
        return lines[-1].removeprefix(REFUSES).decode(errors="replace") if lines else ""

    def _kill(self, pid: int) -> None:
        log.error("the server in %s hangs: process %d is ended", self._file.parent, pid)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
