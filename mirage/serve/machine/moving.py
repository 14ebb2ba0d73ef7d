"""Moves of models between devices while they serve: devices are watched, moves decided and made."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from mirage.control.placement.facts import PlacementFacts, PlaceModel
from mirage.control.placement.host_room import no_host_room
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.rules import PlacementPast
from mirage.control.placement.steps import MoveStep, MoveVerb
from mirage.machines.seam import StaleEpoch
from mirage.serve.machine.carrying import StepCarrier
from mirage.serve.machine.change import FILE, MachineChange
from mirage.serve.machine.first import squeezed
from mirage.serve.machine.judging import PlacementJudging
from mirage.serve.machine.move_book import MoveBook
from mirage.serve.machine.section import PlacementSection
from mirage.serve.machine.served_device import DirectedDevice
from mirage.serve.machine.stand_ins import StandIns
from mirage.serve.machine.under_way import CarriedMove, MovesUnderWay
from mirage.serve.machine.watching import MachineWatch
from mirage.serve.whatif.forms import Scene

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Most seconds between two looks at the devices."""


class MachineMoves:
    """Decides about moves and has them carried out. While one is under way, another one begins only
    if a device is lost or back or serves again, if a start on a lost device failed, or if facts
    change while a device is lost. `keep` has to run."""

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
        lost model that fits nowhere goes to the device with the largest fraction of memory free.
        """
        self._astray = astray
        self._devices, self._section, self._book, self._say = devices, section, book, say
        self._facts: PlacementFacts | None = None
        self._ordered: MachineChange | None = None
        self._at_work = asyncio.Lock()
        self._watch = MachineWatch(devices, section)
        self._carrier = StepCarrier(devices, section.start_s, section.drain_s)
        self._under_way = MovesUnderWay(self._carrier, book, say)
        self._judging = PlacementJudging({}, section)
        self._past = PlacementPast()
        self._stand_ins = StandIns()
        self._nowhere: set[str] = set()
        """Models of lost devices for which no machine has host memory."""
        self._decided, self._lost = time.monotonic(), frozenset[str]()
        self._failed: dict[str, tuple[float, str]] = {}
        """Time of the last failed move of each model, by `time.monotonic`, and its device."""

    def knows(
        self,
        facts: PlacementFacts | None,
        scenes: Mapping[str, Scene],
        section: PlacementSection | None = None,
    ) -> None:
        """Decide by these facts from now on, and by the rules of `section` (None: as before).

        `facts` are without load; with None only ordered changes move models. `scenes` are those of
        `judge_scenes`.
        """
        if section is not None:
            self._section = section
            self._watch.ruled(section)
            self._carrier.ruled(section.start_s, section.drain_s)
        self._judging = PlacementJudging(scenes, self._section)
        began, self._facts = self._facts is None, None if self._section.off else facts
        if self._facts is not None:
            if began and self._astray:
                self._watch.waited()
                self.goes_on()
            self._stand_ins.named({one.name: one.pins for one in self._facts.models})
        self._lost = frozenset()  # so lost models that are new get a place at the next look
        named = "placement.off is true" if self._section.off else "each model names its devices"
        self._book.stays = f"{named}: nothing moves" if self._facts is None else ""

    def orders(self, change: MachineChange) -> None:
        """Carry out the steps of `change` next, instead of an earlier order."""
        self._ordered = change if change.steps else None

    @property
    def stand_ins(self) -> frozenset[tuple[str, str]]:
        """Model and device of each replica that serves for a lost device."""
        return self._stand_ins.places

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Context inside which no model moves.

        Steps under way fail with `GaveWay`; their moves are decided anew after the context.
        """
        async with self._at_work:
            with self._carrier.giving_way():
                await self._under_way.over()
            self._end()
            yield

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
        try:
            while True:
                await asyncio.sleep(min(LOOK_S, self._section.decide_s))
                if may is not None and not may.is_set():
                    await may.wait()
                    self._watch.waited()
                try:
                    await self._once()
                except StaleEpoch:
                    raise
                except Exception:
                    log.exception("no placement is decided")
        finally:
            await self._under_way.stop()

    async def look(self) -> None:
        """Carry out an ordered change, look at the devices, and make a decision if one is due.
        Returns once all moves are over.

        Raises `StaleEpoch` once a newer controller has begun.
        """
        await self._once()
        await self._under_way.over()
        self._end()

    async def _once(self) -> None:
        """Look once, and begin the moves that follow. Raises `StaleEpoch` once a newer controller
        has begun."""
        async with self._at_work:
            self._end()
            if (ordered := self._ordered) is not None:
                self._ordered = None
                self._begin(ordered.before, ordered.after, ordered.steps, FILE)
            if self._facts is not None:
                await self._look(self._facts)

    async def _look(self, facts: PlacementFacts) -> None:
        """Look at the devices. If one does not answer and is not yet lost, do nothing more.
        Otherwise end stand-ins that are no longer needed and, if a decision is due, decide where
        models go.

        A decision is due in each of these cases:

        - `decide_s` seconds have passed since the last one, and no move is under way;
        - other devices are lost than at the last one;
        - a device is lost, and the facts are new since the last decision;
        - a device is lost, and a start on that device has failed since the last decision.
        """
        await self._watch.look()
        if not self._watch.is_whole:
            return
        self._come_back()
        lost, now = self._watch.lost, time.monotonic()
        is_due = now - self._decided >= self._section.decide_s and not self._under_way
        if is_due or lost != self._lost:
            self._lost, self._decided = lost, now
            await self._decide(facts)

    async def _decide(self, given: PlacementFacts) -> None:
        """Make one decision, and begin its steps."""
        watch, now, past = self._watch, time.monotonic(), self._past
        present = self._present
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
        pasts = past, decision.past
        self._begin(present, placement, steps, lost + decision.why, pasts)

    def _tell_nowhere(
        self, facts: PlacementFacts, placement: DevicePlacement, gone: Collection[str]
    ) -> None:
        """Print once for each model of lost devices that gets no other device the reason why."""
        nowhere = {name for name in gone if name in facts.model and not placement.of(name)}
        for name in sorted(nowhere - self._nowhere):
            for device in facts.devices:
                self._say(no_host_room(facts, placement, name, device.name))
        self._nowhere = nowhere

    @property
    def _present(self) -> DevicePlacement:
        """Present placement without lost devices, with replicas that moves under way will start."""
        present = self._watch.present
        for model, device, stand in self._under_way.places:
            if device not in self._watch.lost and device not in present.of(model):
                present = present.put(model, device, stand)
        return present

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
        """Facts for a decision: models that move, or have a stand-in beside their own device, stay
        where they are.

        Models that are nowhere are left out while they move, and for `rest_s` seconds after a move
        to a device failed that is not lost.
        """
        rest_s, lost, moves = self._section.rest_s, self._watch.lost, self._under_way.models
        failed = self._failed.items()
        held = moves | {n for n, (at, d) in failed if now - at < rest_s and d not in lost}
        stay = self._stand_ins.models
        return replace(
            facts,
            models=tuple(
                replace(m, pins=tuple(at))
                if m.name in moves or (m.name in stay and len(at) > 1)
                else self._freed(m)
                for m in facts.models
                for at in [present.of(m.name)]
                if m.name not in held or at
            ),
        )

    def _freed(self, model: PlaceModel) -> PlaceModel:
        """The model; with `astray` it may go anywhere if all devices that it names are lost."""
        lost = all(name in self._watch.lost for name in model.pins)
        return replace(model, pins=()) if self._astray and lost else model

    def _come_back(self) -> None:
        """End stand-ins whose models serve again on their own devices."""
        present = self._present
        under_way, serves = self._under_way.models, self._watch.serves
        may_end = lambda model, at: model not in under_way and serves(model, at)  # noqa: E731
        for model, device in self._stand_ins.over(present, may_end):
            home = ", ".join(name for name in present.of(model) if name != device)
            steps = (
                MoveStep(MoveVerb.DRAIN, model, device, f"it has {home} again"),
                MoveStep(MoveVerb.STOP, model, device, f"it stood in for {home}"),
            )
            why = f"{home} serves {model} again"
            self._begin(present, present.out(model, device), steps, why)

    def _begin(
        self,
        present: DevicePlacement,
        placement: DevicePlacement,
        steps: tuple[MoveStep, ...],
        why: str,
        pasts: tuple[PlacementPast, PlacementPast] | None = None,
    ) -> None:
        """Begin to carry out steps."""
        known = () if self._facts is None else self._facts.devices
        machines = {one.name: one.machine for one in known}
        self._under_way.begin(CarriedMove(present, placement, steps, why, machines, pasts))

    def _end(self) -> None:
        """Note the results of moves that are over. Raises `StaleEpoch` once a newer controller has
        begun."""
        for move in self._under_way.ended():
            for model, device in move.failed.items():
                self._failed[model] = time.monotonic(), device
                if device in self._watch.lost:
                    self._lost = frozenset()  # so the model gets another place at this look
            if move.gave_way and move.pasts is not None:
                before, after = move.pasts
                self._past = before if self._past is after else self._past
