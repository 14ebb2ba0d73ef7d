"""The search: Optuna's TPE over the knobs, pruned window by window, kept in a file.

Trials are made in batches. The choices of a batch depend only on the seed, on the batch's number
and on the batches before it: not on the number of processes, nor on interruptions of the search. So
an interrupted batch is discarded and made again.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from mirage.config import ConfigError
from mirage.tools.tune.goals import Goal, WindowResult, figures
from mirage.tools.tune.runs import WindowRunner
from mirage.tools.tune.simulated import WindowRun
from mirage.tools.tune.space import FIXED, Choice, SearchSpace, Value

BATCH = 4
"""Trials of one batch."""
RANDOM = 16
"""Random trials at the beginning; later ones use the results so far."""
NAME = "tune"
FILE = "trials.db"

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Searched:
    """A trial of the search: its settings and figures."""

    number: int
    choice: Choice
    state: str
    """``complete``, ``pruned`` or ``fail`` (the configuration does not fit)."""
    value: float | None
    """Value over all windows; None for a trial that did not run on all of them."""
    figures: dict[str, float]


@dataclass(frozen=True)
class Task:
    """A search: its space and goal, and the windows and seed of its trials."""

    space: SearchSpace
    goal: Goal
    windows: Sequence[int]
    seed: int
    slower: float

    def runs(self, choice: Choice, windows: Sequence[int], seed: int) -> list[WindowRun]:
        """Runs of a choice, one for each window."""
        config = self.space.apply(choice)
        return [WindowRun(config, window, seed, self.slower) for window in windows]


def first_choices(space: SearchSpace) -> list[Choice]:
    """Choices that are always tried: the unchanged file, and each fixed percentage."""
    capped = [knob for knob in space.knobs if knob.name.startswith("max_percent:")]
    every: list[Choice] = [{}]
    for percent in FIXED if capped else ():
        every.append({k.name: percent for k in capped if k.default != percent})
    return every


def search(
    task: Task, run: WindowRunner, trials: int, storage: Path, digest: str
) -> list[Searched]:
    """The first `trials` trials: those that `storage` has, and the others, which are run now and
    stored there. Raises `ConfigError` if `storage` has trials of a search with another `digest`.
    """
    stored = _open(task, storage, digest)
    # Behind the median of those that have seen as many windows.
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2 * BATCH, n_warmup_steps=0)
    study = optuna.create_study(direction=_direction(task.goal), pruner=pruner)
    study.add_trials(stored.trials)
    firsts = first_choices(task.space)
    distributions = _distributions(task.space)
    while (begin := len(study.trials)) < trials:
        study.sampler = _sampler(task.seed, begin)
        asked = []
        for number in range(begin, min(begin + BATCH, trials)):
            if number < len(firsts):
                study.enqueue_trial(_indices(task.space, firsts[number]))
            asked.append(study.ask(distributions))
        _try(task, run, study, asked, len(firsts))
        stored.add_trials(study.trials[begin:])
    return [_searched(trial, task.space) for trial in study.trials[:trials]]


def in_order(goal: Goal, trials: Sequence[Searched]) -> list[Searched]:
    """Trials that ran on all windows, the best first; of equal trials the earlier one first."""
    whole = [(trial.value, trial) for trial in trials if trial.value is not None]
    ordered = sorted(whole, key=lambda pair: -pair[0] if goal.maximised else pair[0])
    return [trial for _, trial in ordered]


def importances(found: Sequence[Searched], task: Task) -> dict[str, float]:
    """Part of the differences between trials that each knob explains; empty for too few trials, or
    if all have the same value.
    """
    study = optuna.create_study(direction=_direction(task.goal))
    distributions = _distributions(task.space)
    for one in found:
        if one.value is not None:
            params = _indices(task.space, one.choice)
            study.add_trial(
                optuna.trial.create_trial(
                    params=params, distributions=distributions, value=one.value
                )
            )
    values = {one.value for one in found if one.value is not None}
    if len(study.trials) < BATCH or len(values) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    weights = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(weight) for name, weight in weights.items()}


def _try(
    task: Task, run: WindowRunner, study: optuna.Study, asked: Sequence[Trial], firsts: int
) -> None:
    """Run a batch window by window, each trial until it is pruned; report all results at the
    end.
    """
    seen: dict[int, list[WindowResult]] = {trial.number: [] for trial in asked}
    states = dict.fromkeys(seen, TrialState.COMPLETE)
    choices = {trial.number: _choice(trial.params, task.space) for trial in asked}
    for step, window in enumerate(task.windows):
        live = [t for t in asked if states[t.number] is TrialState.COMPLETE]
        outcomes = run([task.runs(choices[t.number], [window], task.seed)[0] for t in live])
        for trial, outcome in zip(live, outcomes, strict=True):
            if outcome is None:
                states[trial.number] = TrialState.FAIL
                continue
            seen[trial.number].append(outcome)
            trial.report(task.goal.value(seen[trial.number]), step)
            last = step == len(task.windows) - 1
            if trial.number >= firsts and not last and trial.should_prune():
                states[trial.number] = TrialState.PRUNED
    for trial in asked:
        _tell(task, study, trial, states[trial.number], seen[trial.number])


def _tell(
    task: Task, study: optuna.Study, trial: Trial, state: TrialState, seen: Sequence[WindowResult]
) -> None:
    if state is TrialState.COMPLETE:
        trial.set_user_attr("figures", figures(seen, task.goal.slo))
        study.tell(trial, task.goal.value(seen))
    else:
        study.tell(trial, state=state)


def _open(task: Task, storage: Path, digest: str) -> optuna.Study:
    """The study in the file, cut to complete batches. Raises `ConfigError` for another question's
    study.
    """
    address = f"sqlite:///{storage}"
    direction = _direction(task.goal)
    kept: list[FrozenTrial] = []
    if storage.exists() and NAME in optuna.get_all_study_names(address):
        old = optuna.load_study(study_name=NAME, storage=address)
        if old.user_attrs.get("digest") != digest:
            raise ConfigError(
                f"--output {storage.parent}: {storage.name} has trials of another question "
                "(configuration, trace, profile, objective, SLO or seed differ): name another "
                "folder, or remove that file"
            )
        kept = old.trials[: len(old.trials) // BATCH * BATCH]
        if len(kept) == len(old.trials):
            return old
        optuna.delete_study(study_name=NAME, storage=address)
    made = optuna.create_study(study_name=NAME, storage=address, direction=direction)
    made.set_user_attr("digest", digest)
    made.add_trials(kept)
    return made


def _sampler(seed: int, begin: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(
        seed=(seed * 1_000_003 + begin) % 2**32, n_startup_trials=RANDOM
    )


def _direction(goal: Goal) -> StudyDirection:
    return StudyDirection.MAXIMIZE if goal.maximised else StudyDirection.MINIMIZE


def _distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Optuna's range of each knob: the index of its value."""
    return {knob.name: IntDistribution(0, len(knob.values) - 1) for knob in space.knobs}


def _indices(space: SearchSpace, choice: Choice) -> dict[str, int]:
    return {
        k.name: k.values.index(choice[k.name]) if k.name in choice else k.written
        for k in space.knobs
    }


def _choice(indices: dict[str, Any], space: SearchSpace) -> dict[str, Value]:
    """Choice of these values, without knobs that have the file's value."""
    return {k.name: k.values[indices[k.name]] for k in space.knobs if indices[k.name] != k.written}


def _searched(trial: FrozenTrial, space: SearchSpace) -> Searched:
    complete = trial.state is TrialState.COMPLETE
    return Searched(
        number=trial.number,
        choice=_choice(trial.params, space),
        state=trial.state.name.lower(),
        value=trial.value if complete else None,
        figures=trial.user_attrs.get("figures", {}),
    )
