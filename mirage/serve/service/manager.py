"""Service manager that started this process, systemd for one: what it is told (sd_notify)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two looks at the status where no watchdog asks for shorter ones."""
PARTS = 4
"""A watchdog's time has so many looks: one that is late is no reason to end a server."""

WAIT_S = 0.5
"""Seconds that a manager with too much to read is waited for."""


class ServiceManager:
    """Datagrams to a socket; nothing is told where there is none."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """`address` is a path, or begins with ``@`` for an abstract one.

        It ends a server that has not pinged it for `watchdog_s` seconds; None: it waits for ever.
        """
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._status, self._is_ready = "", False
        self._owes_ready = False
        """True if it had too much to read to hear that all is ready."""

    def ready(self) -> None:
        """All has started."""
        self._is_ready = True
        self._tell_ready()

    def reloading(self) -> None:
        """The configuration is read again; `reloaded` has to follow. Nothing before `ready`."""
        if self._is_ready:
            self._owes_ready = False  # until `reloaded`
            self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """The configuration has been read, whatever came of it."""
        if self._is_ready:
            self._tell_ready()

    def stopping(self) -> None:
        """The server ends."""
        self._tell("STOPPING=1")

    def status(self, line: str) -> None:
        """Say what the server does; once for each change."""
        if line != self._status and self._tell(f"STATUS={line}"):
            self._status = line

    async def keep(self, decisions: Callable[[], int], status: Callable[[], str]) -> None:
        """Tell the status, and ping the watchdog as long as `decisions` grow. Never returns."""
        if not self._address:
            await asyncio.Event().wait()
        pause_s = LOOK_S if self._watchdog_s is None else min(LOOK_S, self._watchdog_s / PARTS)
        before = -1
        while True:
            if self._owes_ready:
                self._tell_ready()
            self.status(status())
            if (now := decisions()) != before and self._watchdog_s is not None:
                before = now
                self._tell("WATCHDOG=1")
            await asyncio.sleep(pause_s)

    def _tell_ready(self) -> None:
        """Without it a manager waits for ever, also for the end of a reload."""
        self._owes_ready = not self._tell("READY=1")

    def _tell(self, *lines: str) -> bool:
        """False if it is worth while to tell it again."""
        if not self._address:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
                one.settimeout(WAIT_S)
                one.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:  # no reason to serve nobody
            log.warning("the service manager is not told %s: %s", lines[0], error)
            return not isinstance(error, TimeoutError)
        return True


def service_manager(environment: MutableMapping[str, str]) -> ServiceManager:
    """Service manager that `environment` names; its variables are taken out of it.

    Engines inherit the rest: none of them may speak in the server's name.
    """
    address = environment.pop("NOTIFY_SOCKET", "")
    microseconds = environment.pop("WATCHDOG_USEC", "")
    meant = environment.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
    watches = bool(address) and meant and microseconds.isdecimal() and int(microseconds) > 0
    return ServiceManager(
        address if address[:1] in ("/", "@") else "", int(microseconds) / 1e6 if watches else None
    )
