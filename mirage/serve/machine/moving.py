"""Moves of models between devices while they serve: devices are watched, moves decided and made."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from mirage.control.placement.facts import PlacementFacts, PlaceModel
from mirage.control.placement.host_room import no_host_room
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.rules import PlacementPast
from mirage.control.placement.steps import MoveStep, MoveVerb
from mirage.control.placement.words import step_lines
from mirage.machines.seam import StaleEpoch
from mirage.serve.machine.carrying import GaveWay, StepCarrier, StepFailed
from mirage.serve.machine.change import FILE, MachineChange
from mirage.serve.machine.first import squeezed
from mirage.serve.machine.judging import PlacementJudging
from mirage.serve.machine.move_book import DONE, FAILED, MoveBook, OneMove
from mirage.serve.machine.section import PlacementSection
from mirage.serve.machine.served_device import DirectedDevice
from mirage.serve.machine.stand_ins import StandIns
from mirage.serve.machine.watching import MachineWatch
from mirage.serve.whatif.forms import Scene

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Most seconds between two looks at the devices."""


class MachineMoves:
    """Decides about moves and has them carried out, one at a time. `keep` has to run."""

    def __init__(
        self,
        devices: Mapping[str, DirectedDevice],
        section: PlacementSection,
        book: MoveBook,
        say: Callable[[str], None],
        *,
        astray: bool = False,
    ) -> None:
        """Moves are noted in `book`. `knows` has to be called before anything is decided.

        With `astray` a model goes to other devices if all devices that it names are lost, and a
        lost model that fits nowhere goes where most memory is free.
        """
        self._astray = astray
        self._devices, self._section, self._book, self._say = devices, section, book, say
        self._facts: PlacementFacts | None = None
        self._ordered: MachineChange | None = None
        self._at_work = asyncio.Lock()
        self._watch = MachineWatch(devices, section)
        self._carrier = StepCarrier(devices, section.start_s, section.drain_s)
        self._judging = PlacementJudging({}, section)
        self._past = PlacementPast()
        self._stand_ins = StandIns()
        self._nowhere: set[str] = set()
        """Models that are gone, and for which no machine has host memory."""
        self._decided, self._lost = time.monotonic(), frozenset[str]()
        self._failed: dict[str, float] = {}
        """Time of the last failed move of each model, by `time.monotonic`."""

    def knows(
        self,
        facts: PlacementFacts | None,
        scenes: Mapping[str, Scene],
        ordered: MachineChange | None = None,
    ) -> None:
        """Decide by these facts from now on; `ordered` is carried out next.

        `facts` are without load; with None only `ordered` moves. `scenes` are those of
        `judge_scenes`.
        """
        self._judging = PlacementJudging(scenes, self._section)
        self._facts = None if self._section.off else facts
        self._ordered = ordered
        named = "placement.off is true" if self._section.off else "each model names its devices"
        self._book.stays = f"{named}: nothing moves" if self._facts is None else ""

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Context inside which no model moves.

        A step under way fails with `GaveWay`; it is decided anew afterwards.
        """
        with self._carrier.giving_way():
            await self._at_work.acquire()
        try:
            yield
        finally:
            self._at_work.release()

    def goes_on(self) -> None:
        """Recognise the stand-ins for lost devices that an earlier controller started."""
        models = () if self._facts is None else self._facts.models
        pins = {one.name: one.pins for one in models}
        self._stand_ins.found(self._watch.present, pins)

    async def keep(self, may: asyncio.Event | None = None) -> None:
        """Look again and again, and decide. Never returns; a failed decision is logged, and engines
        go on.

        Looks are made only while `may` is set, if it is given. Raises `StaleEpoch` once another
        controller has begun.
        """
        while True:
            await asyncio.sleep(min(LOOK_S, self._section.decide_s))
            if may is not None and not may.is_set():
                await may.wait()
                self._watch.waited()
            try:
                await self.look()
            except StaleEpoch:
                raise
            except Exception:
                log.exception("no placement is decided")

    async def look(self) -> None:
        """Carry out an ordered change; look at the devices, and decide if it is time.

        Raises `StaleEpoch`.
        """
        async with self._at_work:
            if (ordered := self._ordered) is not None:
                self._ordered = None
                await self._carry(ordered.before, ordered.after, ordered.steps, FILE)
            if self._facts is not None:
                await self._look(self._facts)

    async def _look(self, facts: PlacementFacts) -> None:
        """Look at the devices, and decide if it is time or if the lost devices have changed."""
        await self._watch.look()
        if not self._watch.is_whole:
            return
        await self._come_back()
        lost, now = self._watch.lost, time.monotonic()
        if now - self._decided >= self._section.decide_s or lost != self._lost:
            self._lost, self._decided = lost, now
            await self._decide(facts)

    async def _decide(self, given: PlacementFacts) -> None:
        """Make one decision, and carry it out."""
        watch, now, past = self._watch, time.monotonic(), self._past
        present = watch.present
        load = watch.load(given)
        asked = await asyncio.to_thread(self._with_lacking, load.facts)
        facts = self._movable(asked, present, now)
        if not facts.devices:
            return
        decision = await self._judging.decide(facts, load.windows, present, self._past, now)
        self._past = decision.past
        log.debug("placement: %s", decision.why)
        away = watch.lost
        gone = {m for name in away for m in self._devices[name].tenants}
        placement, steps = decision.placement, decision.steps
        if self._astray:
            placement, more = squeezed(facts, placement, gone)
            steps += more
            self._tell_nowhere(facts, placement, gone)
        if not steps:
            self._book.stays = decision.why
            return
        self._stand_ins.begin(steps, gone)
        lost = f"{', '.join(sorted(away))} away: " if away and gone else ""
        if not await self._carry(present, placement, steps, lost + decision.why):
            self._past = past

    def _tell_nowhere(
        self, facts: PlacementFacts, placement: DevicePlacement, gone: Collection[str]
    ) -> None:
        """Say once of each model that is gone why it comes nowhere."""
        nowhere = {name for name in gone if name in facts.model and not placement.of(name)}
        for name in sorted(nowhere - self._nowhere):
            for device in facts.devices:
                self._say(no_host_room(facts, placement, name, device.name))
        self._nowhere = nowhere

    def _with_lacking(self, facts: PlacementFacts) -> PlacementFacts:
        """Facts that name the models whose weights a machine lacks. It reads the disk."""
        lacking = {
            (model.name, facts.device[name].machine)
            for name, one in self._devices.items()
            if name in facts.device
            for model in facts.models
            if one.lacks_weights(model.name)
        }
        return replace(facts, lacking=frozenset(lacking))

    def _movable(
        self, facts: PlacementFacts, present: DevicePlacement, now: float
    ) -> PlacementFacts:
        """Facts for a decision: models that have a stand-in beside their own device stay where they
        are.

        Models that are nowhere, and whose last move failed less than `rest_s` seconds ago, are left
        out.
        """
        held = {name for name, at in self._failed.items() if now - at < self._section.rest_s}
        stay = self._stand_ins.models
        return replace(
            facts,
            models=tuple(
                replace(m, pins=tuple(at)) if m.name in stay and len(at) > 1 else self._freed(m)
                for m in facts.models
                for at in [present.of(m.name)]
                if m.name not in held or at
            ),
        )

    def _freed(self, model: PlaceModel) -> PlaceModel:
        """The model; with `astray` it may go anywhere if all devices that it names are lost."""
        lost = all(name in self._watch.lost for name in model.pins)
        return replace(model, pins=()) if self._astray and lost else model

    async def _come_back(self) -> None:
        """End stand-ins whose models serve again on their own devices."""
        present = self._watch.present
        for model, device in self._stand_ins.over(present, self._watch.serves):
            home = ", ".join(name for name in present.of(model) if name != device)
            steps = (
                MoveStep(MoveVerb.DRAIN, model, device, f"it has {home} again"),
                MoveStep(MoveVerb.STOP, model, device, f"it stood in for {home}"),
            )
            why = f"{home} serves {model} again"
            await self._carry(present, present.out(model, device), steps, why)

    async def _carry(
        self,
        present: DevicePlacement,
        placement: DevicePlacement,
        steps: tuple[MoveStep, ...],
        why: str,
    ) -> bool:
        """Carry out and log steps; false if they gave way to an operator, which is no failure of a
        model.
        """
        move = OneMove(present, placement, steps, why)
        self._book.begins(move)
        gave_way, names = False, ", ".join(dict.fromkeys(step.model for step in steps))
        for line in [f"placement of {names}: {why}", *step_lines(steps)]:
            self._say(line)
        for number, step in enumerate(steps):
            move.begins(number)
            try:
                tell = partial(move.tells, number)
                words = await self._carrier.carry(steps, number, placement, tell)
            except StepFailed as error:
                back = await self._carrier.back(steps, number)
                gave_way = isinstance(error, GaveWay)
                if not gave_way:
                    self._failed[step.model] = time.monotonic()
                move.failed(number, str(error), back)
                self._say(f"{step.verb} {step.model} on {step.device} failed: {error}; {back}")
                break
            move.is_done(number, words)
            more = f": {words}" if words else ""
            self._say(f"{step.verb} {step.model} on {step.device}: done{more}")
        else:
            move.ends(DONE)
        self._book.ends(move)
        log.info("move of %s: %s", names, FAILED if move.told.way_back else DONE)
        await self._watch.look()
        return not gave_way
