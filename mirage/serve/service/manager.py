"""Messages to the service manager that started this process, such as systemd (sd_notify)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two updates of the status if the watchdog does not need shorter ones."""
PARTS = 4
"""Number of pings in the watchdog's time, so that one may be late."""
AGAIN_S = 0.5
"""Seconds until messages are sent again to a manager whose socket was full."""


class ServiceManager:
    """Sender of datagrams to the service manager; without an address it sends none."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """`address` is a path, or begins with ``@`` for an abstract socket.

        The manager ends a server that has not pinged it for `watchdog_s` seconds; None if it never
        does.
        """
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._status, self._is_ready = "", False
        self._owed: list[str] = []
        """Messages that still have to be delivered, in order: without one the manager would wait
        for ever.
        """
        self._is_behind = False
        """True if the last message could not be sent because the manager's socket was full."""

    def ready(self) -> None:
        """Tell the manager that all has started."""
        self._is_ready = True
        self._owe("READY=1")

    def reloading(self) -> None:
        """Tell the manager that the configuration is read again; `reloaded` has to follow.

        Nothing is told before `ready`.
        """
        if self._is_ready:
            self._owe(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Tell the manager that reading the configuration has ended, with success or not."""
        if self._is_ready:
            self._owe("READY=1")

    def stopping(self) -> None:
        """Tell the manager that the server ends."""
        self._tell("STOPPING=1")

    def status(self, line: str) -> None:
        """Tell the manager the `line` about the server's state, unless it has been told this line
        last."""
        if line != self._status and self._tell(f"STATUS={line}"):
            self._status = line

    async def keep(self, decisions: Callable[[], int], status: Callable[[], str]) -> None:
        """Tell the line that `status` returns, and ping the watchdog as long as the number that
        `decisions` returns changes, both at intervals. Never returns.
        """
        if not self._address:
            await asyncio.Event().wait()
        pause_s = LOOK_S if self._watchdog_s is None else min(LOOK_S, self._watchdog_s / PARTS)
        before = -1
        while True:
            self._tell_owed()
            self.status(status())
            if (now := decisions()) != before and self._watchdog_s is not None:
                before = now if self._tell("WATCHDOG=1") else before
            await asyncio.sleep(min(pause_s, AGAIN_S) if self._is_behind else pause_s)

    def _owe(self, state: str) -> None:
        self._owed.append(state)
        self._tell_owed()

    def _tell_owed(self) -> None:
        while self._owed and self._tell(self._owed[0]):
            del self._owed[0]

    def _tell(self, text: str) -> bool:
        """Send one message; false if it has to be sent again because the manager's socket is full.

        Another error is only logged. Never blocks the event loop.
        """
        if not self._address:
            return True
        was_behind, self._is_behind = self._is_behind, False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
                one.setblocking(False)
                one.sendto(text.encode(), self._address)
        except OSError as error:  # no reason to serve nobody
            self._is_behind = isinstance(error, BlockingIOError)
            if not (was_behind and self._is_behind):
                log.warning("the service manager is not told %s: %s", text.split("\n")[0], error)
            return not self._is_behind
        return True


def service_manager(environment: MutableMapping[str, str]) -> ServiceManager:
    """Service manager that `environment` names; its variables are removed there.

    Engines inherit the rest, and must not send messages in the server's name.
    """
    address = environment.pop("NOTIFY_SOCKET", "")
    microseconds = environment.pop("WATCHDOG_USEC", "")
    meant = environment.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
    watches = bool(address) and meant and microseconds.isdecimal() and int(microseconds) > 0
    return ServiceManager(
        address if address[:1] in ("/", "@") else "", int(microseconds) / 1e6 if watches else None
    )
