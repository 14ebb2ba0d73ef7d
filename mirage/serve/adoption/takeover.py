"""Takeover of the engines that a killed server left: each goes on or is ended, with a log line."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from mirage.control.roster.roster import Roster
from mirage.control.roster.states import Life, LifeState, WeightsPlace
from mirage.processes.marks import MarkedProcess
from mirage.protocol import Report
from mirage.serve.adoption.judging import EngineWanted, unfit
from mirage.serve.adoption.left import LeftRun, end_engines
from mirage.serve.adoption.record import EngineRecord
from mirage.units import size

logger = logging.getLogger("mirage.serve.adoption")

RETURN_S = 10.0
"""Seconds in which an engine has to say hello; engines try five times a second."""


class Adopter(Protocol):
    """Manager of a tenant's engine, as adoption uses it."""

    @property
    def wanted(self) -> EngineWanted:
        """Engine that the manager would start now."""

    def goes_on(self, left: EngineRecord, process: MarkedProcess) -> None:
        """Take over a running engine, which serves once it has said hello again. Raises `OSError`
        if it has ended.
        """

    async def returned(self) -> None:
        """Return when the expected engine has connected, with its memory in the ledger."""

    async def disowns(self) -> None:
        """End an engine that was taken over."""

    def adopted(self) -> None:
        """Note that the engine that was taken over stays."""


class KeeperAdopter(Protocol):
    """Keeper of weights of this server, as adoption uses it."""

    def adopt(self, process: MarkedProcess) -> bool:
        """Take over a keeper that runs; False if it does not answer, and is ended."""


class Takeover:
    """Takeover of one run. Call `begin` before the control socket is open, and `finish` before the
    roster decides.
    """

    def __init__(
        self,
        left: LeftRun,
        managers: Mapping[str, Adopter],
        roster: Roster,
        reports: Mapping[str, Report],
        say: Callable[[str], None],
    ) -> None:
        """`reports` are the first reports of engines that have connected, by tenant."""
        self._left, self._managers, self._roster = left, managers, roster
        self._reports, self._say = reports, say
        self._awaited: dict[str, EngineRecord] = {}
        self.ended: dict[str, str] = {}
        """Reason why each engine that does not go on was ended, by tenant."""

    async def begin(self, weights: KeeperAdopter) -> None:
        """Kill the reaper of the killed server, take over its keeper and the engines that may go
        on, and end the other engines.
        """
        record = self._left.record
        self._left.end_reaper()
        keeper = None if record.keeper is None else MarkedProcess.found(record.keeper)
        if keeper is not None and not weights.adopt(keeper):
            self._say("the keeper of weights did not answer: it is ended")
        unwanted = []
        for name, engine in record.engines.items():
            if why := self._awaits(name, engine):
                self.ended[name] = why
                unwanted.append(engine)
        await asyncio.to_thread(end_engines, unwanted)

    def _awaits(self, name: str, engine: EngineRecord) -> str:
        """Take one engine over; returns an empty text, or the reason why it is not taken over."""
        process, manager = MarkedProcess.found(engine.server), self._managers.get(name)
        wanted = None if manager is None else manager.wanted
        if why := unfit(engine, wanted, lives=process is not None):
            if process is not None:
                process.close()
            return why
        assert process is not None and manager is not None
        try:
            manager.goes_on(engine, process)
        except OSError as error:
            return f"it cannot be watched ({error})"
        self._awaited[name] = engine
        return ""

    async def finish(self, wakes: Callable[[str], None]) -> list[str]:
        """Wait for the engines that were taken over; return the tenants whose engines go on.

        An engine that says no hello in `RETURN_S` seconds, or for which the device has too little
        memory, is ended. `wakes` is called with each adopted tenant whose engine is not asleep.
        """
        returns = {
            name: asyncio.create_task(self._managers[name].returned()) for name in self._awaited
        }
        if returns:
            await asyncio.wait(returns.values(), timeout=RETURN_S)
        adopted = []
        for name, task in returns.items():
            task.cancel()
            why = self._fits(name) if name in self._reports else f"no hello in {RETURN_S:g} s"
            if why:
                self.ended[name] = why
                await self._managers[name].disowns()
            else:
                self._adopts(name, wakes)
                adopted.append(name)
        self._tell(adopted)
        return adopted

    def _fits(self, name: str) -> str:
        own = self._roster.members[name].own
        needed = own.asleep if self._reports[name].asleep else own.awake
        missing = needed - self._roster.room.free
        return f"{size(missing)} are missing for it" if missing > 0 else ""

    def _adopts(self, name: str, wakes: Callable[[str], None]) -> None:
        report, keeps = self._reports[name], self._roster.members[name].life.keeps
        life = Life(LifeState.READY, WeightsPlace.DEVICE, keeps)
        if report.asleep:
            life = Life(LifeState.SLEEPING, WeightsPlace.HOST, keeps)
        self._roster.adopted(name, life, time.monotonic())
        self._managers[name].adopted()
        if not report.asleep:
            wakes(name)

    def _tell(self, adopted: Iterable[str]) -> None:
        held = {name: self._reports[name].held_bytes for name in adopted}
        if held:
            parts = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in held.items())
            self._say(f"adopted from process {self._left.record.server.pid}: {parts}")
        for name, nbytes in held.items():
            logger.info("adopted tenant=%s held_bytes=%d", name, nbytes)
        for name, why in self.ended.items():
            self._say(f"{name}: its engine of before was ended: {why}")
            logger.info("ended tenant=%s reason=%s", name, why)
