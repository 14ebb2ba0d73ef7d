"""Rows, the paper's claims and our acceptance bands, and the rules by which each is judged.

A row is one claim of MIRAGE (arXiv 2507.11507; M1 to M17), TierKV (T), Harvest (H) or the articles
on offloading (A), or one band (B1 …) that a result should fall into. Each figure is the mean over
the seeds of a change in per cent, seed by seed. There are ten seeds by default. Almost all bands
and rules were chosen without sight of them; the page names the exceptions. A band is judged by the
95 % interval of that mean. A claim's figures have their intervals beside them, and its verdict has
the number of seeds whose own figures agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from benchmarks.claims import decode_scenes, scenes
from benchmarks.decode.setup import DecodeSetup
from benchmarks.decode.setup import Job as DecodeJob
from mirage.simulate.experiment import Setup
from mirage.simulate.run import Metrics
from mirage.tools.report.intervals import mean
from mirage.tools.simulate.pool import PoolJob, SimulationJob, run_all
from mirage.tools.simulate.progress import counting

Verdict = Literal["reproduced", "direction", "not reproduced", "inconsistent"]
Judged = Literal["inside", "open", "outside"]
"""All of the interval of a mean is in the band, a part of it, or nothing."""
NEAR = 10.0
"""Percentage points by which a figure may miss the paper's and still reproduce it."""


class Results:
    """Figures of all runs that the rows need."""

    def __init__(self, seeds: Sequence[int], runs: dict[tuple[str, str, int], Metrics]) -> None:
        self._seeds, self._runs = seeds, runs

    def each(self) -> list[Results]:
        """The results split by seed: one `Results` for each seed alone."""
        return [Results([seed], self._runs) for seed in self._seeds]

    def mean(self, scene: str, policy: str, key: str) -> float:
        values = [float(self._runs[scene, policy, seed][key]) for seed in self._seeds]
        return sum(values) / len(values)

    def change(self, scene: str, policy: str, against: str, key: str) -> float:
        """Change in per cent of a figure from policy `against` to `policy` in a scene, positive for
        more: the mean over seeds of each seed's change.
        """
        changes = [
            100 * (ratio - 1) for ratio in self._ratios((scene, policy), (scene, against), key)
        ]
        return sum(changes) / len(changes)

    def over(self, one: tuple[str, str], other: tuple[str, str], key: str) -> float:
        """Quotient of a figure in one (scene, policy) and in another: the mean over seeds of each
        seed's quotient.
        """
        ratios = self._ratios(one, other, key)
        return sum(ratios) / len(ratios)

    def ratio(self, scene: str, policy: str, against: str, key: str) -> float:
        return 1 + self.change(scene, policy, against, key) / 100

    def _ratios(self, one: tuple[str, str], other: tuple[str, str], key: str) -> list[float]:
        pairs = [(self._runs[*one, s][key], self._runs[*other, s][key]) for s in self._seeds]
        return [float(new) / float(old) for new, old in pairs]


class Span(NamedTuple):
    """Range of a change in per cent over the loads, and the widest half of their 95 % intervals;
    None instead of the half with a single seed.
    """

    low: float
    high: float
    half: float | None


def span(results: Results, measures: Iterable[Callable[[Results], float]]) -> Span:
    """Range of the changes that `measures` give; there is one measure for each load."""
    found = [mean([measure(one) for one in results.each()]) for measure in measures]
    values = [each.value for each in found]
    halves = [each.half for each in found if each.half is not None]
    half = round(max(halves), 1) if halves else None
    return Span(round(min(values), 1), round(max(values), 1), half)


@dataclass(frozen=True)
class Row:
    """One line of the page. `needs` are (scene, policy) pairs."""

    id: str
    claim: str
    paper: str
    why: str = ""
    needs: tuple[tuple[str, str], ...] = ()
    table: Callable[[Results], list[list[str]]] | None = None
    """Function that gives a table of further figures, whose first row is the heading."""

    def evaluate(self, results: Results) -> dict[str, Any]:
        """Result of the row: `measured`, `band`, `judged`, `holds` and `verdict`."""
        raise NotImplementedError

    def judged(self, results: Results) -> dict[str, Any]:
        """Facts of `evaluate`. A claim that needs runs also has the number of seeds whose own
        figures give its verdict or a better one, unless the document contradicts itself.
        """
        said = self.evaluate(results)
        if self.needs and said["band"] is None and said["verdict"] in _RANK:
            worst = _RANK.index(said["verdict"])
            each = [self.evaluate(one)["verdict"] for one in results.each()]
            said["holds"] = [sum(_RANK.index(one) <= worst for one in each), len(each)]
        return said


@dataclass(frozen=True)
class Closed(Row):
    """A claim by arithmetic; `bears` says whether the paper's own inputs bear it.

    `otherwise` is the verdict on a claim that they do not bear.
    """

    measure: Callable[[], str] = str
    bears: Callable[[], bool] = lambda: True
    otherwise: Verdict = "not reproduced"

    def evaluate(self, results: Results) -> dict[str, Any]:
        return {
            "measured": self.measure(),
            **NO_BAND,
            "verdict": "reproduced" if self.bears() else self.otherwise,
        }


@dataclass(frozen=True)
class Compared(Row):
    """A claim about changes in per cent, over one scene or a range of loads.

    `figures` maps what the paper names to (its figure, our keys for it): where a "TBT" may be
    ITL or TPOT, both are shown, and either may reproduce it.
    """

    scenes: tuple[str, ...] = ()
    policy: str = "mirage"
    against: str = "static"
    figures: dict[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    """More keys to show, that the paper gives no figure for."""
    beside: str | None = None
    """A policy that it is compared with as well, without a verdict."""

    def evaluate(self, results: Results) -> dict[str, Any]:
        measured: dict[str, Any] = {}
        verdicts: list[Verdict] = []
        for name, (paper, keys) in self.figures.items():
            ranges = {key: self._range(results, key, self.against) for key in keys}
            measured |= ranges
            best = min((verdict(paper, r) for r in ranges.values()), key=_RANK.index)
            measured[f"{name}: verdict"] = best
            verdicts.append(best)
        measured |= {key: self._range(results, key, self.against) for key in self.extra}
        if self.beside:
            shown = [key for _, keys in self.figures.values() for key in keys]
            measured |= {
                f"{key} against {self.beside}": self._range(results, key, self.beside)
                for key in shown
            }
        return {
            "measured": measured,
            **NO_BAND,
            "verdict": overall(verdicts),
        }

    def _range(self, results: Results, key: str, against: str) -> Span:
        def at(scene: str) -> Callable[[Results], float]:
            return lambda one: one.change(scene, self.policy, against, key)

        return span(results, map(at, self.scenes))


@dataclass(frozen=True)
class Band(Row):
    """A band for one number; None leaves a side open. `unit` is % or x or a plain count.

    `measure` is asked for each seed alone.
    """

    band: tuple[float | None, float | None] = (None, None)
    unit: str = "%"
    measure: Callable[[Results], float] = lambda _: 0.0

    def evaluate(self, results: Results) -> dict[str, Any]:
        values = [self.measure(one) for one in results.each()]
        found = mean(values)
        value, half = round(found.value, 3), found.half or 0.0
        ends = [round(found.value - half, 3), round(found.value + half, 3)]
        return {
            "measured": value,
            "interval": None if found.half is None else ends,
            "band": list(self.band),
            "judged": self._judged(*ends),
            "holds": [sum(self._inside(round(v, 3)) for v in values), len(values)],
            "verdict": "reproduced" if self._inside(value) else self._outside(value),
        }

    def _judged(self, low: float, high: float) -> Judged:
        """Verdict on the interval from `low` to `high`."""
        if self._inside(low) and self._inside(high):
            return "inside"
        least, most = self.band
        beside = (least is not None and high < least) or (most is not None and low > most)
        return "outside" if beside else "open"

    def _inside(self, value: float) -> bool:
        low, high = self.band
        return (low is None or value >= low) and (high is None or value <= high)

    def _outside(self, value: float) -> Verdict:
        low, high = self.band
        nearest = low if low is not None and value < low else high
        assert nearest is not None
        return "direction" if value * nearest > 0 else "not reproduced"


PAGE = Path("docs/claims.md")
SEEDS = list(range(20, 30))
"""Seeds of the page. Almost all bands and rules were chosen in sight of smaller seeds."""
NO_BAND: dict[str, Any] = {"band": None, "interval": None, "judged": None, "holds": None}
_RANK: list[Verdict] = ["reproduced", "direction", "not reproduced"]


def verdict(paper: float, found: Span) -> Verdict:
    """Verdict on a range over loads: "reproduced" if it contains the paper's figure or comes within
    `NEAR` points of it, "direction" if both ends have its sign, else "not reproduced".
    """
    low, high, _ = found
    if low - NEAR <= paper <= high + NEAR:
        return "reproduced"
    return "direction" if low * paper > 0 and high * paper > 0 else "not reproduced"


def overall(verdicts: list[Verdict]) -> Verdict:
    """Overall verdict on several figures: the worst one. If exactly one of several figures is not
    reproduced, the verdict is "direction".
    """
    if len(verdicts) > 1 and verdicts.count("not reproduced") == 1:
        return "direction"
    return max(verdicts, key=_RANK.index)


def evaluate(
    rows: Iterable[Row],
    seeds: Sequence[int],
    processes: int | None,
    trace: Path | None,
    console: Console,
) -> list[dict[str, Any]]:
    """Run what the rows need, each run once, and judge the rows. Raises `ConfigError` for a scene
    that cannot be simulated.
    """
    rows = list(rows)
    needed = sorted({need for row in rows for need in row.needs})
    setups: dict[str, Setup | DecodeSetup] = dict(scenes.setups(trace))
    setups |= {name: decode_scenes.setup(name) for name, _ in needed if decode_scenes.is_one(name)}
    keys = [(scene, policy, seed) for scene, policy in needed for seed in seeds]
    jobs = [_job(setups[scene], policy, seed) for scene, policy, seed in keys]
    with counting(len(jobs), console, "claims") as seen:
        figures = run_all(jobs, processes, seen)
    results = Results(seeds, dict(zip(keys, figures, strict=True)))
    return [
        {
            "id": row.id,
            "claim": row.claim,
            "paper": row.paper,
            **row.judged(results),
            "why": row.why,
            "table": row.table(results) if row.table else None,
            "seeds": list(seeds),
        }
        for row in rows
    ]


def _job(setup: Setup | DecodeSetup, policy: str, seed: int) -> PoolJob:
    if isinstance(setup, DecodeSetup):
        return DecodeJob(setup, policy, seed)
    return SimulationJob(setup, policy, seed)


def both(scene: str, *policies: str) -> tuple[tuple[str, str], ...]:
    """The (scene, policy) pairs of a comparison, one for each policy."""
    return tuple((scene, policy) for policy in policies)
