"""The answer to a question: load and limits, search, choice, and judging on unseen windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage.config import Config, Policy
from mirage.tools.report.slo import Slo
from mirage.tools.tune.choosing import FINALISTS, chosen, most_values
from mirage.tools.tune.goals import Goal, WindowResult, figures
from mirage.tools.tune.load import computed_per_s, derived_slo, each_pressing
from mirage.tools.tune.progress import WindowProgress
from mirage.tools.tune.question import Question
from mirage.tools.tune.recommending import OfferedLoad
from mirage.tools.tune.runs import WindowRunner, runner
from mirage.tools.tune.search import (
    FILE,
    Searched,
    Task,
    first_choices,
    importances,
    in_order,
    search,
)
from mirage.tools.tune.simulated import WindowRun
from mirage.tools.tune.space import FIXED, Choice, fixed

SEARCH_SEEDS = 2
"""Number of seeds by which the searched windows are dealt to tenants when finalists are
compared.
"""
JUDGE_SEEDS = 5
DEFAULT, TUNED, STATIC, POOLED = "default", "tuned", "static", "pooled"


@dataclass(frozen=True)
class TuneWish:
    """Options of `mirage tune`: objective, limits, trials, measurements on real engines."""

    objective: str = "goodput"
    slo: Slo | None = None
    """Limits of a request; None: they are derived."""
    trials: int = 64
    processes: int | None = None
    slower: float | None = None
    """Factor on the trace's gaps; None: 1 if the load is given, otherwise the factor at which the
    configuration first misses the limits.
    """
    live: int = 0
    """Number of the search's best configurations that are measured on real engines; 0: none."""
    live_repeats: int = 3


@dataclass(frozen=True)
class Judged:
    """A configuration and its figures on the windows that were held back from the search."""

    name: str
    seeds: tuple[dict[str, float], ...]
    """All objectives for each seed."""
    whole: dict[str, float]
    """All objectives over all seeds together."""
    outcomes: tuple[WindowResult, ...]


@dataclass(frozen=True)
class Recommendation:
    """Result of a search: the recommended configuration, and the evidence for it."""

    goal: Goal
    slo_is_derived: bool
    slower: float
    """Factor on the trace's gaps, beside the configuration's `time_scale`."""
    pressing: dict[str, float]
    """Factor on the trace's gaps at which each policy first misses the limits, by policy; empty if
    the load is given.
    """
    load: OfferedLoad | None
    """The loads of `pressing` as parts of the machine's capacity; None if the load is given, or the
    configuration's policy lends no layers.
    """
    trials: list[Searched]
    choice: Choice
    config: Config
    searched: dict[str, float]
    """Value of each contender on the searched windows, by name."""
    judged: dict[str, Judged]
    importances: dict[str, float]


def answer(
    question: Question, wish: TuneWish, folder: Path, progress: WindowProgress
) -> Recommendation:
    """Search and judge. Raises `ConfigError` with one line if `folder` has the trials of another
    question; after a `KeyboardInterrupt` the trials remain in `folder`.
    """
    bench = question.bench(question.config.replay.time_scale)
    with runner(bench, wish.processes, progress.ended) as run:
        task, derived, presses = _task(question, wish, run, progress)
        windows = task.windows
        progress.stage("searching", wish.trials * len(windows))
        asked = {"objective": wish.objective, "slo": str(task.goal.slo), "slower": task.slower}
        same = question.digest(**asked)
        trials = search(task, run, wish.trials, folder / FILE, same)
        always, best = first_choices(task.space), _best(task.goal, trials)
        of_one = len(windows) * SEARCH_SEEDS
        progress.stage("comparing the best", most_values(task.space, always) * of_one)
        choice = chosen(task.goal, task.space, best, _Values(task, run), always)
        config = task.space.apply(choice) if choice else question.config
        names = contenders(question.config, config)
        progress.stage("comparing on the searched windows", len(names) * of_one)
        seeds = range(task.seed, task.seed + SEARCH_SEEDS)
        searched = {
            name: task.goal.value(_outcomes(task, run, each, windows, seeds) or ())
            for name, each in names.items()
        }
        held = [window.number for window in question.cut.held_back]
        progress.stage("judging on held-back windows", len(names) * len(held) * JUDGE_SEEDS)
        judged = {name: _judge(task, run, name, each, held) for name, each in names.items()}
        return Recommendation(
            goal=task.goal,
            slo_is_derived=derived,
            slower=task.slower,
            pressing=presses,
            load=_load(question, presses, run),
            trials=trials,
            choice=choice,
            config=config,
            searched=searched,
            judged=judged,
            importances=importances(trials, task),
        )


def contenders(default: Config, tuned: Config) -> dict[str, Config]:
    """The recommended configuration and those that it is compared with, by name."""
    return {
        STATIC: default.model_copy(update={"policy": Policy.STATIC}),
        POOLED: default.model_copy(update={"policy": Policy.POOLED}),
        DEFAULT: default,
        **{fixed_name(percent): fixed(default, percent) for percent in FIXED},
        TUNED: tuned,
        f"{TUNED} at 0 %": fixed(tuned, 0.0),
    }


def fixed_name(percent: float) -> str:
    """Name of a contender with a fixed percentage, as ``"fixed 30 %"``."""
    return f"fixed {percent:g} %"


def _task(
    question: Question, wish: TuneWish, run: WindowRunner, progress: WindowProgress
) -> tuple[Task, bool, dict[str, float]]:
    """The task, True if its latency limits were derived, and, by policy, the factor on the times
    between the trace's requests at which the policy first misses these limits (the larger, the less
    load); no factors if the load is given.
    """
    windows = [window.number for window in question.cut.searched]
    seed, config = question.options.seed, question.config
    progress.stage("looking at the load")
    slo = wish.slo or derived_slo(run, config, windows, seed)
    slower, presses = wish.slower or 1.0, dict[str, float]()
    if wish.slower is None and not question.load_is_given:
        presses = each_pressing(run, config, slo, windows, seed)
        slower = presses[str(config.policy)]
    task = Task(question.space, Goal(wish.objective, slo), windows, seed, slower)
    return task, wish.slo is None, presses


def _load(
    question: Question, presses: Mapping[str, float], run: WindowRunner
) -> OfferedLoad | None:
    if str(Policy.MIRAGE) not in presses:
        return None
    searched = question.cut.searched
    windows, requests = [window.number for window in searched], len(searched[0].requests)
    computed = computed_per_s(run, question.config, windows, requests, question.options.seed)
    return OfferedLoad(computed, {name: question.rate(s) / computed for name, s in presses.items()})


def _best(goal: Goal, trials: Sequence[Searched]) -> list[Choice]:
    """The finalists: the `FINALISTS` best different choices, or fewer, in the order of `in_order`.
    A choice that was tried several times has the place of its best trial.
    """
    distinct: dict[str, Choice] = {}
    for trial in in_order(goal, trials):
        distinct.setdefault(repr(sorted(trial.choice.items())), trial.choice)
    return list(distinct.values())[:FINALISTS]


class _Values:
    """Callable that computes the values of choices on the searched windows, over several seeds."""

    def __init__(self, task: Task, run: WindowRunner) -> None:
        self._task, self._run = task, run

    def __call__(self, choices: Sequence[Choice]) -> list[float]:
        task = self._task
        seeds = range(task.seed, task.seed + SEARCH_SEEDS)
        runs = [[r for s in seeds for r in task.runs(c, task.windows, s)] for c in choices]
        results = iter(self._run([each for several in runs for each in several]))
        found = [[next(results) for _ in several] for several in runs]
        return [_value(task.goal, outcomes) for outcomes in found]


def _value(goal: Goal, outcomes: Sequence[WindowResult | None]) -> float:
    fitting = [outcome for outcome in outcomes if outcome is not None]
    return goal.value(fitting) if len(fitting) == len(outcomes) else goal.worst


def _outcomes(
    task: Task, run: WindowRunner, config: Config, windows: Sequence[int], seeds: Sequence[int]
) -> list[WindowResult] | None:
    """Results of all windows and seeds; None if the configuration does not fit."""
    runs = [WindowRun(config, window, seed, task.slower) for seed in seeds for window in windows]
    fitting = [outcome for outcome in run(runs) if outcome is not None]
    return fitting if len(fitting) == len(runs) else None


def _judge(
    task: Task, run: WindowRunner, name: str, config: Config, windows: Sequence[int]
) -> Judged:
    seeds = range(task.seed, task.seed + JUDGE_SEEDS)
    outcomes = _outcomes(task, run, config, windows, seeds) or []
    size = len(windows)
    parts = [outcomes[at : at + size] for at in range(0, len(outcomes), size)]
    slo = task.goal.slo
    whole = figures(outcomes, slo)
    return Judged(name, tuple(figures(p, slo) for p in parts), whole, tuple(outcomes))


def mean_lent(judged: Mapping[str, Judged], name: str) -> tuple[float, float]:
    """Bytes of layers that idle models had given away, and that active models had given away, under
    the contender `name`: means over the time of all held-back windows and seeds.
    """
    outcomes = judged[name].outcomes
    seconds = sum(outcome.duration_s for outcome in outcomes) or 1.0
    idle = sum(outcome.lent_idle for outcome in outcomes) / seconds
    return idle, sum(outcome.lent_active for outcome in outcomes) / seconds
