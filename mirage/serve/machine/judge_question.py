"""Question for a decision about placement, for another process, and its answer. No I/O.

If a window has many requests, only its last ones are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec

from mirage.control.placement.deciding import PlacementDecision, Placer
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.judging import JudgeOver
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.rules import PlacementPast, PlacementRules
from mirage.serve.machine.judge_scenes import scene_kinds
from mirage.serve.whatif.forms import Scene
from mirage.simulate.fleet.judging import LatencyLimits, SimulatedJudge, SimulatedVerdicts
from mirage.simulate.fleet.load_log import WindowRows
from mirage.simulate.roofline import PS

MOST = 2_000
"""Most requests of a window that are simulated, of all models together; the last ones, roughly."""


class JudgeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """All data for a decision by simulation. Times are in seconds; `now` is by the clock of `past`,
    `time.monotonic`.
    """

    rules: PlacementRules
    facts: PlacementFacts
    windows: tuple[WindowRows, ...]
    """Requests in the windows of `facts`, in the same order."""
    scenes: dict[str, Scene]
    """Inputs of the simulation (scenes) by device, for devices on which some model fits."""
    present: DevicePlacement
    past: PlacementPast
    now: float
    ttft_s: float
    tpot_s: float
    judge_s: float
    """Most seconds for all simulations."""


def simulable(
    windows: Iterable[WindowRows], facts: PlacementFacts, scenes: Mapping[str, Scene]
) -> tuple[WindowRows, ...]:
    """The last requests of each window, roughly `MOST`, of models that can be simulated."""
    known = {
        name
        for one in scenes.values()
        for name, tenant in one.tenants.items()
        if tenant.shape.max_extents and name in facts.model
    }
    return tuple(_last(window, known) for window in windows)


def _last(window: WindowRows, known: set[str]) -> WindowRows:
    rows = {name: each for name, each in window.rows.items() if name in known}
    count = sum(map(len, rows.values()))
    if count <= MOST:
        return replace(window, rows=rows)
    seconds = window.seconds * MOST / count
    begin = round((window.seconds - seconds) * PS)
    late = {
        name: [(at - begin, prompt, output) for at, prompt, output in each if at >= begin]
        for name, each in rows.items()
    }
    return replace(window, seconds=seconds, rows=late)


def decided(question: JudgeQuestion, clock: Callable[[], float]) -> PlacementDecision | None:
    """Decision by simulation; None if the time is over before the present placement is judged.

    `clock` is in seconds.
    """
    until = clock() + question.judge_s
    facts = question.facts
    limits = LatencyLimits.of_seconds(question.ttft_s, question.tpot_s)
    kinds = scene_kinds(question.scenes, facts.device)
    verdicts = SimulatedVerdicts(kinds, limits, lambda: clock() >= until)
    judge = SimulatedJudge(facts, question.windows, verdicts)
    try:
        return Placer(question.rules).decide(
            facts, judge, question.present, question.past, question.now
        )
    except JudgeOver:
        return None
