"""Decisions about placements: by simulation in a process, or by arithmetic if that fails."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import msgspec

from mirage.control.placement.deciding import PlacementDecision, Placer
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.roofline_judge import RooflineJudge
from mirage.control.placement.rules import PlacementPast
from mirage.serve.machine.judge_process import answer_of
from mirage.serve.machine.judge_question import JudgeQuestion, simulable
from mirage.serve.machine.section import PlacementSection
from mirage.serve.whatif.forms import Scene
from mirage.simulate.fleet.load_log import WindowRows

log = logging.getLogger(__name__)

PROGRAM = ("-m", "mirage.serve.machine.judge_process")
START_S = 30.0
"""Seconds for the process to start, beyond those of its simulations."""


class NoSimulation(Exception):
    """No simulation was completed; the message is the reason."""


class PlacementJudging:
    """Decides by simulation within a time, and by arithmetic if that gives no answer. A placement
    that was found best for nearly the same facts is kept without a simulation."""

    def __init__(
        self,
        scenes: Mapping[str, Scene],
        section: PlacementSection,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        """`program` are the arguments of Python that start the process which simulates."""
        self._scenes, self._section, self._program = dict(scenes), section, program
        self._placer = Placer(section.rules)

    async def decide(
        self,
        facts: PlacementFacts,
        windows: tuple[WindowRows, ...],
        present: DevicePlacement,
        past: PlacementPast,
        now: float,
    ) -> PlacementDecision:
        """Decision at time `now`, by `time.monotonic`; `windows` are the requests in the windows of
        `facts`.
        """
        present = present.within(facts)
        if past.holds(facts, present, self._section.rules):
            return await self._by_arithmetic(facts, present, past, now)  # which judges nothing
        section = self._section
        question = JudgeQuestion(
            rules=section.rules,
            facts=facts,
            windows=simulable(windows, facts, self._scenes),
            scenes=self._scenes,
            present=present,
            past=past,
            now=now,
            ttft_s=section.ttft_s,
            tpot_s=section.tpot_s,
            judge_s=section.judge_s,
        )
        try:
            found, how = await self._simulated(question), "simulated"
        except NoSimulation as error:
            found = await self._by_arithmetic(facts, present, past, now)
            how = f"by arithmetic: {error}"
        return replace(found, why=f"{found.why} ({how})")

    async def _by_arithmetic(
        self,
        facts: PlacementFacts,
        present: DevicePlacement,
        past: PlacementPast,
        now: float,
    ) -> PlacementDecision:
        judge = RooflineJudge(facts)
        return await asyncio.to_thread(self._placer.decide, facts, judge, present, past, now)

    async def _simulated(self, question: JudgeQuestion) -> PlacementDecision:
        """Decision by simulation. Raises `NoSimulation` if there is none in time, or the process
        fails."""
        asked = await asyncio.to_thread(msgspec.msgpack.encode, question)
        try:
            async with asyncio.timeout(START_S + question.judge_s):
                found = await self._answer(asked)
        except TimeoutError:
            found = None
        if found is None:
            raise NoSimulation(f"the simulation was not over in {question.judge_s:g} s")
        return found

    async def _answer(self, asked: bytes) -> PlacementDecision | None:
        """Answer of a new process to the encoded question. Raises `NoSimulation` if it fails."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *self._program, stdin=pipe, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            raise NoSimulation(f"no simulation can be started ({error.strerror})") from None
        try:
            told, errors = await process.communicate(asked)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
        if process.returncode:
            log.warning("placement: simulation failed: %s", errors.decode(errors="replace")[-2000:])
            raise NoSimulation(f"the simulation ended with exit status {process.returncode}")
        try:
            return answer_of(told)
        except msgspec.DecodeError as error:
            raise NoSimulation(f"the answer of the simulation is none ({error})") from None
