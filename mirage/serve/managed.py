"""Links between the manager of an engine and the control server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from mirage.control.controller import Controller
from mirage.control.debts import Debtor
from mirage.serve.engine_manager import EngineManager


class ManagedEngines:
    """Link from the control server to the engines' managers."""

    def __init__(
        self, managers: Mapping[str, EngineManager], no_room: Callable[[str, int, int], str]
    ) -> None:
        """`no_room` says why an engine may not serve, by the device's free bytes and all."""
        self._managers, self._no_room = managers, no_room

    def came(self, tenant: str, pid: int) -> None:
        self._managers[tenant].came(pid)

    def joined(self, tenant: str) -> None:
        self._managers[tenant].joined()

    def stepped(self, tenant: str, free_bytes: int, total_bytes: int) -> None:
        self._managers[tenant].stepped(self._no_room(tenant, free_bytes, total_bytes))

    async def lost(self, tenant: str, reason: str | None) -> None:
        await self._managers[tenant].lost(reason)

    def failed(self, tenant: str, error: str, fault: str) -> None:
        self._managers[tenant].failed(error, fault)

    def hangs(self, tenant: str, why: str) -> None:
        self._managers[tenant].hangs(why)


class Share:
    """A tenant's share of the device, for its manager; every change is decided upon at once.

    `end` ends the engine of the tenant that it names, and says why.
    """

    def __init__(
        self,
        name: str,
        controller: Controller,
        wake: Callable[[], None],
        end: Callable[[str, str], None],
    ) -> None:
        self._name, self._controller, self._wake = name, controller, wake
        self.end = end

    def lend(self) -> None:
        self._controller.given_up(self._name)
        self._wake()

    def keep(self) -> None:
        self._controller.awaited(self._name)
        self._wake()

    def is_free(self) -> bool:
        return self._controller.has_room(self._name)

    def debtors(self) -> list[Debtor]:
        return self._controller.debtors(time.monotonic())
