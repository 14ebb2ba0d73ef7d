"""Links between the managers of engines and the control server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from mirage.control.controller import Controller
from mirage.control.debts import Debtor
from mirage.protocol import Hello, Report
from mirage.serve.ends.restarts import Pause
from mirage.serve.engines.manager import EngineManager
from mirage.serve.roster.attendance import Attendance


class ManagedEngines:
    """Passes news of the control server on to the engines' managers."""

    def __init__(
        self,
        managers: Mapping[str, EngineManager],
        no_room: Callable[[str, int, int], str],
        attendance: Attendance,
    ) -> None:
        """`no_room` returns the reason why an engine may not serve, given the device's free and
        total bytes.
        """
        self._managers, self._no_room, self._attendance = managers, no_room, attendance

    def unwelcome(self, hello: Hello) -> str:
        manager = self._managers.get(hello.tenant)
        return f"{hello.tenant!r} is not served" if manager is None else manager.unwelcome(hello)

    def came(self, tenant: str, pid: int) -> None:
        self._managers[tenant].came(pid)

    def joined(self, tenant: str) -> None:
        self._managers[tenant].joined()

    def reported(self, tenant: str, report: Report) -> None:
        self._attendance.reported(tenant, report)

    def stepped(self, tenant: str, free_bytes: int, total_bytes: int) -> None:
        self._managers[tenant].stepped(self._no_room(tenant, free_bytes, total_bytes))

    async def lost(self, tenant: str, reason: str | None) -> None:
        await self._managers[tenant].lost(reason)

    def failed(self, tenant: str, error: str, fault: str) -> None:
        self._managers[tenant].failed(error, fault)

    def hangs(self, tenant: str, why: str) -> None:
        self._managers[tenant].hangs(why)


class Share:
    """A tenant's share of the device, for its manager; each change makes the arbiter decide
    immediately.

    The engine starts when the roster calls it. `end` ends another tenant's engine, for a reason.
    """

    def __init__(
        self,
        name: str,
        controller: Controller,
        wake: Callable[[], None],
        end: Callable[[str, str], None],
        attendance: Attendance,
        first: Callable[[bool], None],
        kept: Callable[[str], bool],
    ) -> None:
        """`wake` makes the arbiter decide. `first` is called with the result of each start: true if
        the engine came to serve.

        `kept` returns true for a tenant whose weights the keeper has in host memory.
        """
        self._name, self._controller, self._wake = name, controller, wake
        self._kept = kept
        self.end = end
        self._attendance, self._first = attendance, first
        self._call = asyncio.Event()

    def lend(self) -> None:
        self._controller.given_up(self._name)
        self._wake()

    def keep(self) -> None:
        self._controller.awaited(self._name)
        self._wake()

    def is_free(self) -> bool:
        return self._controller.has_room(self._name)

    def has_hollow(self, nbytes: int) -> bool:
        return self._kept(self._name) and self._controller.has_room(self._name, nbytes)

    def debtors(self) -> list[Debtor]:
        return self._controller.debtors(time.monotonic())

    # -- starts and ends ----------------------------------------------------------------

    def call(self) -> None:
        """Call for a start of the engine, as the roster orders."""
        self._call.set()

    def recall(self) -> bool:
        """Take a call back; true if the manager has not noticed it, so that nothing starts."""
        called = self._call.is_set()
        self._call.clear()
        return called

    async def called(self) -> None:
        """Return when the engine has to start."""
        while not self._call.is_set():  # it may have been taken back meanwhile
            await self._call.wait()
        self._call.clear()

    def serves(self, seconds: float) -> None:
        self._first(True)
        self._attendance.started(self._name, seconds)

    def ends(self) -> None:
        self._attendance.ends(self._name)

    def ended(self, pause: Pause) -> None:
        """Note that the engine has ended: others may have its share until it is called again."""
        self._first(False)
        self.lend()
        self._attendance.ended(self._name, pause.seconds, failed=pause.failed)
