"""Step times of this version's engine over those of another version's, alternated.

python benchmarks/step_ratio.py BEFORE [--rounds N] [--pairs N] [--sequences 16 64] [--steps N]

BEFORE is a folder with the packages of the other version: a git worktree, or an installation. Two
real engines of vLLM's on this machine's processor serve the same model, each in a process of its
own. They alternate with the same requests, and the one that is first changes from pair to pair, so
that a drift of the machine affects both. A turn is the mean of the steps in which all sequences
decode, in two cases: no memory moves, or every few steps an allotment moves two layers and some KV
extents. Both engines are started anew in each round, because one process may be slower than the
next of the same version; a round counts once, by the mean of its pairs. The program prints for each
case the ratio of now over before, with its 95 % interval over rounds: by wall time; by the engine's
processor time, which other processes disturb less; and by the processor time of the scheduler alone
(`schedule` and `update_from_output`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import exp, log
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
PACKAGES = ("mirage", "vmm", "scheduler")
PROMPT, PREFIXED = 16, 4
"""Tokens of a prompt; first steps of a turn that do not count."""
MOVED_EVERY, LAYERS_AWAY, EXTENTS_AWAY = 4, 2, 8
HOW = ("still", "moved")
CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "processor": time.process_time,
}
SCHEDULER = "scheduler"
SCHEDULES = ("schedule", "update_from_output")
Turn = dict[str, float]


# -- child process ----------------------------------------------------------------------------


def engine(folder: str, root: str, sequences: list[int]) -> None:
    """Child process: run a turn for each line `[sequences, steps, moved]`, and write the seconds of
    a step as a line.
    """
    of(Path(root))
    sys.path.insert(0, str(HERE / "tests" / "engine"))
    import tiny

    most = max(sequences)
    llm = tiny.make_llm(
        tiny.make_model("llama", Path(folder)),
        blocks=8 * most,
        mirage={"policy": "mirage"},
        max_num_seqs=most,
        max_num_batched_tokens=most * PROMPT,
        enable_prefix_caching=False,
    )
    allot = Allotments(tiny.scheduler_of(llm))
    scheduling = Scheduling(tiny.scheduler_of(llm))
    clocks = {**CLOCKS, SCHEDULER: scheduling.seconds}
    for line in sys.stdin:
        count, steps, moved = json.loads(line)
        taken = steps_of(llm, clocks, count, steps, allot if moved else None)
        print(json.dumps(taken), flush=True)


def of(root: Path) -> None:
    """Import our packages from the folder `root`. Raises `SystemExit` if one came
    from elsewhere.
    """
    sys.path.insert(0, str(root))
    for name in PACKAGES:
        found = Path(str(__import__(name).__path__[0]))
        if found.parent.resolve() != root.resolve():
            raise SystemExit(f"{name} of {root} is wanted, and {found} was imported")


class Allotments:
    """Sends allotments as the control server would, which take some layers and extents away or give
    them back.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._revision = scheduler, 0
        self._extents = scheduler.shape.max_extents

    def __call__(self, *, away: bool) -> None:
        from mirage.geometry import footprint
        from mirage.protocol import Allotment

        self._revision += 1
        remapped, extents = LAYERS_AWAY * away, self._extents - EXTENTS_AWAY * away
        grant = footprint(self._scheduler.shape, remapped, extents)
        self._scheduler.mailbox.post(Allotment(self._revision, remapped, int(away), extents, grant))


class Scheduling:
    """Processor time that a scheduler has taken in its calls of a step."""

    def __init__(self, scheduler: Any) -> None:
        self._taken = 0.0
        for name in SCHEDULES:
            setattr(scheduler, name, self._timed(getattr(scheduler, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            begun = time.thread_time()
            try:
                return call(*given, **named)
            finally:
                self._taken += time.thread_time() - begun

        return timed

    def seconds(self) -> float:
        """Processor seconds of all calls so far."""
        return self._taken


def steps_of(
    llm: Any,
    clocks: dict[str, Callable[[], float]],
    count: int,
    steps: int,
    allot: Allotments | None,
) -> Turn:
    """Mean seconds of a step by each clock, while `count` sequences decode."""
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=steps + PREFIXED, temperature=0, ignore_eos=True, detokenize=False
    )
    for number in range(count):
        prompt = [3 + (number + place) % 400 for place in range(PROMPT)]
        llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    taken: dict[str, list[float]] = {name: [] for name in clocks}
    step = 0
    while llm.llm_engine.has_unfinished_requests():
        begun = {name: clock() for name, clock in clocks.items()}
        if allot is not None and step % MOVED_EVERY == 0:
            allot(away=step % (2 * MOVED_EVERY) == 0)
        llm.llm_engine.step()
        for name, clock in clocks.items():
            taken[name].append(clock() - begun[name])
        step += 1
    if allot is not None:
        allot(away=False)
    return {name: statistics.mean(times[PREFIXED:-1]) for name, times in taken.items()}


# -- parent -----------------------------------------------------------------------------------


class Asked:
    """Parent's side of an engine in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def turn(self, count: int, steps: int, *, moved: bool) -> Turn:
        """Let the engine run one turn; returns the seconds of a step by each clock."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([count, steps, moved]) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit("an engine ended: see above")


@contextmanager
def started(folder: Path, root: Path, sequences: list[int]) -> Iterator[Asked]:
    """Run an engine of the version in `root` while the block runs."""
    counts = [str(count) for count in sequences]
    words = [sys.executable, __file__, "--engine", str(folder), str(root), *counts]
    # Before the folder of this file, and before whatever is installed.
    path = os.pathsep.join([str(root), str(HERE)])
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        try:
            yield Asked(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def ratio(now: list[float], before: list[float]) -> tuple[float, float, float]:
    """Geometric mean of the rounds' ratios, now to before, and the ends of its 95 % interval."""
    from mirage.tools.report.intervals import mean

    found = mean([log(a / b) for a, b in zip(now, before, strict=True)])
    half = found.half if found.half is not None else float("inf")
    return exp(found.value), exp(found.value - half), exp(found.value + half)


Case = tuple[int, str]
Pair = tuple[Turn, Turn]


def measure(before: Path, rounds: int, pairs: int, sequences: list[int], steps: int) -> None:
    """Measure all cases, and print the table."""
    cases = [(count, how) for count in sequences for how in HOW]
    told: list[dict[Case, list[Pair]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            told.append(one_round(Path(folder), before, number, pairs, cases, steps))
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    for case in cases:
        print("\n".join(lines(case, [found[case] for found in told])))


def one_round(
    folder: Path, before: Path, number: int, pairs: int, cases: list[Case], steps: int
) -> dict[Case, list[Pair]]:
    """Pairs of turns for each case, before and now, by two engines that are started
    for this round.
    """
    told: dict[Case, list[Pair]] = {case: [] for case in cases}
    sequences = [count for count, _ in cases]
    roots = [before, HERE]
    with ExitStack() as stack:
        engines = [stack.enter_context(started(folder, root, sequences)) for root in roots]
        for pair in range(-1, pairs):  # the first pair loads what is used for the first time
            for count, how in cases:
                turns: list[Turn] = [{}, {}]
                for which in (0, 1) if (pair + number) % 2 else (1, 0):
                    turns[which] = engines[which].turn(count, steps, moved=how == "moved")
                if pair >= 0:
                    told[count, how].append((turns[0], turns[1]))
    return told


def lines(case: Case, rounds: list[list[Pair]]) -> Iterator[str]:
    """Lines of the result of one case, one for each clock."""
    count, how = case
    for clock in (*CLOCKS, SCHEDULER):
        before, now = (
            [statistics.mean(pair[which][clock] for pair in found) for found in rounds]
            for which in (0, 1)
        )
        middle, low, high = ratio(now, before)
        yield (
            f"{count:>3} sequences, memory {how:<5}  {clock:<9} "
            f"{statistics.median(before) * 1e3:7.2f} ms before, "
            f"{statistics.median(now) * 1e3:7.2f} ms now, "
            f"ratio {middle:.4f} [{low:.4f}, {high:.4f}] of {len(rounds)} rounds"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Step times, now over before.")
    parser.add_argument("before", type=Path, nargs="?", help="folder of the other version")
    parser.add_argument("--rounds", type=int, default=8, help="engines are started anew in each")
    parser.add_argument("--pairs", type=int, default=4, help="of a round")
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--steps", type=int, default=60, help="of a turn")
    parser.add_argument("--engine", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.engine:
        folder, root, *counts = asked.engine
        engine(folder, root, [int(count) for count in counts])
        return
    if asked.before is None or not (asked.before / "mirage").is_dir():
        parser.error(f"{asked.before}: name a folder with another version's packages")
    measure(asked.before.resolve(), asked.rounds, asked.pairs, asked.sequences, asked.steps)


if __name__ == "__main__":
    main()
