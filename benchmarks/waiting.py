"""Time before first tokens of the requests that wait longest, by its causes.

    .venv/bin/python -m benchmarks.waiting [--seeds 20-29] [--tail 2] c2-1 FILE ...

A scene of the claims (`benchmarks/experiments/claims.yaml`) or a world in a FILE is simulated under
`static`, `pooled` and `mirage`, and on two larger devices: with the memory of all layers that may
ever go in addition (`layers`, served as by `pooled`), and with endless memory (`endless`). If turns
drain, `mirage` and `endless` are also simulated in turns that do not. The program prints for each
the TTFT P99, the part by which it is below `static`'s, and the mean time of the slowest requests
(`--tail`, per cent) by its causes:

    turn     another model has the turn, or this one ends what it has begun
    memory   the turn is there, KV memory for the prompt is not
    layers   the step waits for layers, which come back or are streamed
    compute  steps: of those before it, while they leave no tokens for it, and its own
"""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import yaml

from benchmarks import ablations
from benchmarks.claims import scenes
from benchmarks.fixed import ENDLESS, GIB, layers_gib
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Setup
from mirage.simulate.roofline import PS
from mirage.simulate.run import run
from mirage.simulate.world import Observer, World
from mirage.tools.report import intervals
from mirage.tools.simulate.command import parse_seeds


class Part(StrEnum):
    """Cause of a part of a request's wait."""

    TURN = "turn"
    MEMORY = "memory"
    LAYERS = "layers"
    COMPUTE = "compute"


class Spent(NamedTuple):
    """Time of one request until its first token, in parts. Seconds."""

    ttft_s: float
    parts: dict[Part, float]


class Line:
    """Cause for which one engine's requests wait, from each moment on. Times are picoseconds."""

    def __init__(self) -> None:
        self._since: list[int] = []
        self._parts: list[Part] = []

    def add(self, time: int, part: Part) -> None:
        """Note that the wait is for `part` from `time` on; earlier notes about later moments are
        dropped.
        """
        while self._since and self._since[-1] >= time:
            self._since.pop()
            self._parts.pop()
        if not self._parts or self._parts[-1] is not part:
            self._since.append(time)
            self._parts.append(part)

    def spent(self, begin: int, end: int) -> dict[Part, int]:
        """Time of each part between two moments.

        >>> line = Line()
        >>> for time, part in ((0, Part.TURN), (10, Part.MEMORY), (20, Part.COMPUTE)):
        ...     line.add(time, part)
        >>> {part.value: time for part, time in line.spent(5, 22).items() if time}
        {'turn': 5, 'memory': 10, 'compute': 2}
        """
        found = dict.fromkeys(Part, 0)
        at = max(0, bisect_right(self._since, begin) - 1)
        while begin < end:
            last = at + 1 == len(self._since)
            until = end if last else min(end, self._since[at + 1])
            found[self._parts[at]] += until - begin
            begin, at = until, at + 1
        return found


class Watch(Observer):
    """Observer of a world that records what its requests wait for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._engines = world.engines
        self._waiting = {engine.name: Line() for engine in world.engines}
        self._begun = {engine.name: Line() for engine in world.engines}
        self._admitted: dict[SimulatedRequest, int] = {}
        self.finished_ones: list[tuple[str, SimulatedRequest]] = []

    def began(self, engine: Engine) -> None:
        """Note a step: some of its prompts may be new, and other requests still wait."""
        step, queues, now = engine.stepper, engine.queues, self._world.now
        for request, _ in step.chunks:
            if request.first < 0 and not request.computed:
                self._admitted[request] = now
        runners, _ = self._world.co_runners(engine)
        computed = engine.costs.roofline.compute_ps(step.work(), runners)
        late = max(0, step.span.first_ps - computed) if step.span.steps == 1 else 0
        tokens = queues.batch.size + sum(tokens for _, tokens in step.chunks)
        full = tokens >= engine.limits.max_num_batched_tokens
        waiting, begun = self._waiting[engine.name], self._begun[engine.name]
        if not engine.turn.granted:
            waiting.add(now, Part.TURN)
        elif full or not queues.waiting:
            waiting.add(now, Part.LAYERS if late else Part.COMPUTE)
            waiting.add(now + late, Part.COMPUTE)
        else:
            waiting.add(now, Part.MEMORY)
        begun.add(now, Part.LAYERS if late else Part.COMPUTE)
        begun.add(now + late, Part.COMPUTE)

    def happened(self) -> None:
        """Note engines that do not step: they lack their turn, or memory."""
        for engine in self._engines:
            if not engine.stepping:
                part = Part.MEMORY if engine.turn.granted else Part.TURN
                self._waiting[engine.name].add(self._world.now, part)
                self._begun[engine.name].add(self._world.now, part)

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        self.finished_ones.append((engine.name, request))

    def slowest(self, percent: float) -> list[Spent]:
        """The `percent` per cent of requests with the longest times to a first token."""
        by_wait = sorted(self.finished_ones, key=lambda one: one[1].arrival - one[1].first)
        return [self._spent(*one) for one in by_wait[: max(1, round(len(by_wait) * percent / 100))]]

    def _spent(self, name: str, request: SimulatedRequest) -> Spent:
        admitted = self._admitted[request]
        queued = self._waiting[name].spent(request.arrival, admitted)
        begun = self._begun[name].spent(admitted, request.first)
        parts = {part: (queued[part] + begun[part]) / PS for part in Part}
        return Spent((request.first - request.arrival) / PS, parts)


class Seen(NamedTuple):
    """Findings of one run: tokens per second, P99 of TTFT in seconds, and the slowest requests."""

    tokens_s: float
    p99_s: float
    tail: list[Spent]


def seen(setup: Setup, policy: str, seed: int, percent: float) -> Seen:
    """Simulate a policy; returns the tokens a second, the P99, and the slowest requests."""
    watches: list[Watch] = []

    def begun(world: World) -> None:
        watches.append(Watch(world))
        world.observer = watches[0]

    metrics = run(setup, policy, seed, begun=begun)
    p99_s = metrics["p99_ttft_ms"] / 1e3
    return Seen(metrics["output_throughput"], p99_s, watches[0].slowest(percent))


def ways(setup: Setup) -> dict[str, tuple[Setup, str]]:
    """Rows of the table by title, each a setup and the policy that it is simulated under."""
    memory = setup.hardware.memory_bytes / GIB
    found = {policy: (setup, policy) for policy in ("static", "pooled", "mirage")}
    found["layers"] = changed(setup, memory_gib=memory + layers_gib(setup)), "pooled"
    found["endless"] = changed(setup, memory_gib=ENDLESS * memory), "static"
    sharing = setup.experiment.sharing
    if sharing.mode == "temporal" and sharing.drain is True:
        other = sharing.model_copy(update={"drain": False})
        found["mirage, undrained"] = changed(setup, sharing=other), "mirage"
        undrained = changed(setup, memory_gib=ENDLESS * memory, sharing=other)
        found["endless, undrained"] = undrained, "static"
    return found


def changed(setup: Setup, **update: object) -> Setup:
    """Setup of the same experiment with other values of some keys."""
    return Setup(setup.experiment.model_copy(update=update), setup.near, known=setup.known)


def report(title: str, setup: Setup, seeds: Sequence[int], percent: float) -> None:
    """Print the table of one setup, over runs with `seeds`; the times by cause are means of the
    `percent` per cent of each run's requests that wait longest for their first tokens."""
    print(f"\n| {title} | tokens/s | TTFT P99, s | cut, % | slowest {percent:g} %, s | ", end="")
    print(" | ".join(Part), "|\n|---|" + "---:|" * (4 + len(Part)))
    static: list[float] = []
    for name, (made, policy) in ways(setup).items():
        runs = [seen(made, policy, seed, percent) for seed in seeds]
        p99s = [one.p99_s for one in runs]
        static = static or p99s
        cuts = [100 * (1 - p99 / base) for p99, base in zip(p99s, static, strict=True)]
        # Each seed counts alike.
        tails = [fmean(spent.ttft_s for spent in one.tail) for one in runs]
        parts = [
            fmean(fmean(spent.parts[part] for spent in one.tail) for one in runs) for part in Part
        ]
        tokens = fmean(one.tokens_s for one in runs)
        cells = [f"{tokens:,.0f}", interval(p99s), interval(cuts), f"{fmean(tails):.2f}"]
        cells += [f"{part:.2f}" for part in parts]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def interval(values: Sequence[float]) -> str:
    """Mean with its 95 % interval, as text; the mean alone for one value."""
    mean = intervals.mean(list(values))
    if mean.half is None:
        return f"{mean.value:.2f}"
    return f"{mean.value:.2f} ({mean.value - mean.half:.2f} to {mean.value + mean.half:.2f})"


def found(name: str) -> Setup:
    """Setup of the scene of this name, or else of the world in the file of this name."""
    known = scenes.setups()
    if name in known:
        return known[name]
    written = yaml.safe_load(Path(name).read_text())
    return ablations.setup(written.get("world", written))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("setups", nargs="+", metavar="SCENE|FILE")
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("20-29"))
    parser.add_argument("--tail", type=float, default=2, help="per cent of the requests")
    asked = parser.parse_args()
    for name in asked.setups:
        report(name, found(name), asked.seeds, asked.tail)


if __name__ == "__main__":
    main()
