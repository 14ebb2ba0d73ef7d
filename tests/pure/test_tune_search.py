"""The tuner's search: an interrupted one ends as an uninterrupted one, and never with worse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tune_case import write, write_trace

from mirage.config import Config, ConfigError
from mirage.tools.report.slo import Slo
from mirage.tools.tune.answer import Recommendation, TuneWish
from mirage.tools.tune.choosing import chosen, most_values
from mirage.tools.tune.command import command
from mirage.tools.tune.goals import CompletedRequest, Goal, WindowResult
from mirage.tools.tune.question import ENDLESS_ROWS, Question, TuneOptions, ask
from mirage.tools.tune.runs import WindowRunner, runner
from mirage.tools.tune.search import FILE, Searched, Task, first_choices, importances, search
from mirage.tools.tune.simulated import WindowRun
from mirage.tools.tune.space import Choice
from mirage.workload.public import TRACES, folder
from mirage.workload.trace import TraceError

pytestmark = pytest.mark.pure

TRIALS = 22
GOAL = Goal("ttft_mean", Slo())


class Interrupted:
    """Stand-in for a simulation that is cheap and repeatable, and interrupted after
    some windows.
    """

    def __init__(self, after: int | None = None) -> None:
        self.left = after
        self.windows = 0

    def __call__(self, runs: Sequence[WindowRun]) -> list[WindowResult | None]:
        found: list[WindowResult | None] = []
        for run in runs:
            if self.left is not None and self.windows >= self.left:
                raise KeyboardInterrupt
            self.windows += 1
            found.append(outcome(run.config, run.window))
        return found


def outcome(config: Config, window: int) -> WindowResult | None:
    """Made result of a window: best if one model may give 40 % of its layers, with noise that
    depends on the window. Some settings do not fit (None).
    """
    tenant = config.tenants[0]
    if tenant.floor_layers == 4:
        return None
    seconds = 1 + abs(config.max_percent(tenant) - 40) / 50 + config.remap.rest_s / 1000
    noise = random.Random(f"{window} {config.remap.serve}").random() / 10
    return WindowResult((CompletedRequest(seconds + noise, 0.01, 0.02, 2.0, 10),), 1.0)


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Question:
    folder = tmp_path_factory.mktemp("search")
    return ask(write(folder), TuneOptions(trace=str(write_trace(folder))))


@pytest.fixture(scope="module")
def task(question: Question) -> Task:
    return Task(question.space, GOAL, [0, 2, 4, 6], seed=3, slower=1.0)


def searched(task: Task, run: Interrupted, folder: Path, print_: str = "q") -> list[Searched]:
    return search(task, run, TRIALS, folder / FILE, print_)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(task: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Searched], int]:
    """Trials of a search without interruption, and the number of windows that it simulated."""
    run = Interrupted()
    return searched(task, run, tmp_path_factory.mktemp("whole")), run.windows


def test_it_sees_the_file_and_all_fixed_percentages_to_the_end(
    task: Task, whole: tuple[list[Searched], int]
) -> None:
    trials, _ = whole
    firsts = first_choices(task.space)
    assert len(firsts) == 7 and firsts[0] == {}
    assert [trial.choice for trial in trials[:7]] == firsts
    assert all(trial.state == "complete" for trial in trials[:7])
    assert {trial.state for trial in trials} == {"complete", "pruned", "fail"}


@pytest.mark.drawn("after")
@pytest.mark.parametrize("after", [1, 30, 43, 52])
def test_interrupted_and_resumed_it_ends_with_the_same(
    task: Task, whole: tuple[list[Searched], int], tmp_path: Path, after: int
) -> None:
    trials, windows = whole
    assert after < windows
    with pytest.raises(KeyboardInterrupt):
        searched(task, Interrupted(after), tmp_path)
    rest = Interrupted()
    assert searched(task, rest, tmp_path) == trials
    assert rest.windows <= windows


def test_more_trials_go_on_from_fewer(
    task: Task, whole: tuple[list[Searched], int], tmp_path: Path
) -> None:
    fewer = search(task, Interrupted(), 10, tmp_path / FILE, "q")  # type: ignore[arg-type]
    assert fewer == whole[0][:10]
    assert searched(task, Interrupted(), tmp_path) == whole[0]
    again = Interrupted()
    searched(task, again, tmp_path)
    assert again.windows <= 8  # the last batch was not a whole one


def test_trials_of_another_question_are_refused(task: Task, tmp_path: Path) -> None:
    search(task, Interrupted(), 1, tmp_path / FILE, "one")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has trials of another question"):
        search(task, Interrupted(), 1, tmp_path / FILE, "other")  # type: ignore[arg-type]


def test_what_decides_matters_most(task: Task) -> None:
    knobs = {knob.name: knob for knob in task.space.knobs}
    drawn = random.Random(5)
    trials = []
    for number in range(60):
        names = ("max_percent:chat", "serve", "rest_s")
        choice = {name: drawn.choice(knobs[name].values) for name in names}
        value = float(choice["max_percent:chat"] or 0)
        trials.append(Searched(number, choice, "complete", value, {}))
    weights = importances(trials, task)
    assert weights["max_percent:chat"] == max(weights.values()) > 0.5
    assert importances(trials[:2], task) == {}


# -- what is asked ----------------------------------------------------------------------


def test_another_question_has_another_fingerprint(question: Question, tmp_path: Path) -> None:
    same = ask(question.path, question.options)
    assert same.digest(slo="a") == question.digest(slo="a")
    others = [
        question.digest(slo="b"),
        ask(question.path, TuneOptions(question.options.trace, "a100")).digest(slo="a"),
        ask(question.path, TuneOptions(question.options.trace, seed=1)).digest(slo="a"),
        ask(question.path, TuneOptions()).digest(slo="a"),
        ask(write(tmp_path, sharing={"mode": "temporal"}), question.options).digest(slo="a"),
    ]
    assert len({question.digest(slo="a"), *others}) == 6


def test_the_sample_by_its_name_is_the_one_that_is_taken_without_a_name(tmp_path: Path) -> None:
    path = write(tmp_path, replay={})
    usual, named = ask(path, TuneOptions()), ask(path, TuneOptions("sample"))
    assert named.digest() == usual.digest()
    assert named.load_is_given is usual.load_is_given is False
    assert ask(path, TuneOptions(str(write_trace(tmp_path)))).load_is_given


def test_the_trace_of_the_configuration_is_the_one_that_is_taken_without_a_name(
    tmp_path: Path,
) -> None:
    given = write_trace(tmp_path)
    path = write(tmp_path, replay={"trace": given.name})
    asked = ask(path, TuneOptions())
    assert asked.digest() == ask(path, TuneOptions(str(given))).digest()
    assert (asked.trace_name, asked.load_is_given) == (given.name, True)
    path = write(tmp_path, replay={"trace": given.name, "load": 0.5})
    assert not ask(path, TuneOptions()).load_is_given, (
        "it is a part of what a real machine computes"
    )
    assert ask(path, TuneOptions(str(given))).load_is_given


def test_the_format_of_a_trace_may_be_named(tmp_path: Path) -> None:
    rows = [
        f'{{"timestamp": {number}, "input_length": 40, "output_length": 9}}'
        for number in range(100)
    ]
    (tmp_path / "bare.jsonl").write_text("\n".join(rows))
    path = write(tmp_path, replay={"trace": "bare.jsonl"})
    with pytest.raises(TraceError, match=r"mooncake .* or timed .*--trace-format"):
        ask(path, TuneOptions())
    found = cast(Recommendation, SimpleNamespace(goal=GOAL))
    for name, seconds in (("timed", 99.0), ("mooncake", 0.099)):
        options = TuneOptions(trace_format=name)
        assert ask(path, options).cut.held_back[-1].end_s == pytest.approx(seconds)
        words = command(path, options, TuneWish(), found, tmp_path)
        assert words[words.index("--trace-format") + 1] == name


def test_of_a_trace_without_end_no_more_is_read_than_the_windows_hold(tmp_path: Path) -> None:
    (tmp_path / "endless.yaml").write_text("kind: synthetic\nrate: 5\nlengths: sharegpt\n")
    asked = ask(write(tmp_path, replay={"trace": "endless.yaml"}), TuneOptions())
    assert asked.requests == ENDLESS_ROWS
    windows = (*asked.cut.searched, *asked.cut.held_back)
    assert sum(len(window.requests) for window in windows) == ENDLESS_ROWS


def test_a_trace_per_tenant_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path, replay={"trace": {"chat": "sample"}})
    with pytest.raises(ConfigError, match="tune takes one, give --trace"):
        ask(path, TuneOptions())


def test_a_public_trace_is_looked_for_where_it_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, name = write(tmp_path), next(iter(TRACES))
    with pytest.raises(TraceError, match=f"{name}: was not fetched yet"):
        ask(path, TuneOptions(name))
    cached = folder() / TRACES[name].file
    cached.parent.mkdir(parents=True)
    write_trace(tmp_path).rename(cached)
    assert (asked := ask(path, TuneOptions(name))).trace_name == name
    assert asked.requests == 160


def test_processes_and_one_process_find_the_same(question: Question) -> None:
    bench = question.bench(0.5)
    configs = [question.config, question.space.apply({"max_percent:chat": 0.0})]
    runs = [WindowRun(config, window, 0) for config in configs for window in (0, 1)]
    ended: list[None] = []
    alone = WindowRunner(bench, None, lambda: ended.append(None))(runs)
    with runner(bench, 2, lambda: None) as run:
        assert run(runs) == alone
    assert len(ended) == len(runs)
    assert all(found is not None and len(found.rows) == 20 for found in alone)


# -- choosing ---------------------------------------------------------------------------


def values(choices: Sequence[Choice]) -> list[float]:
    """Made values of choices: one knob matters much, another one little."""
    return [
        10
        + abs(float(c.get("max_percent:chat", 95.0) or 0) - 40)
        + (c.get("serve") == "growth") / 100
        for c in choices
    ]


def test_what_does_not_matter_is_left_as_it_was(task: Task) -> None:
    best = [{"max_percent:chat": 50.0, "rest_s": 2.0, "max_percent:code": 0.0, "share:chat": 2.0}]
    assert chosen(GOAL, task.space, best, values) == {"max_percent:chat": 40.0}


def test_as_many_choices_are_asked_about_as_was_said(task: Task) -> None:
    always: list[Choice] = [{"max_percent:chat": 30.0}]
    best: list[Choice] = [{"rest_s": each} for each in (1.0, 2.0, 5.0, 10.0, 20.0, 60.0)]
    asked = 0

    def of(choices: Sequence[Choice]) -> list[float]:
        nonlocal asked
        asked += len(choices)
        return values(choices)

    chosen(GOAL, task.space, best, of, always)
    assert len(best) < asked <= most_values(task.space, always)


def test_the_answer_is_never_worse_than_what_it_is_always_compared_with(task: Task) -> None:
    # The best of the search would be simplified to `serve` alone, which the percentage beats.
    always: list[Choice] = [{"max_percent:chat": 30.0}]
    worth = {"serve": 0.5, "max_percent:chat": 0.505, "rest_s": 0.002}

    def of(choices: Sequence[Choice]) -> list[float]:
        return [
            1 - max((worth.get(n, 0) for n in c), default=0) - 0.008 * (len(c) > 1) for c in choices
        ]

    best: list[Choice] = [{"serve": "growth", "rest_s": 2.0}]
    answer = chosen(GOAL, task.space, best, of, always)
    (least,) = of(always)
    assert of([answer])[0] <= least
    assert of([chosen(GOAL, task.space, best, of)])[0] <= of([{}])[0]


def test_the_answer_is_never_worse_than_the_file(task: Task) -> None:
    worse: list[Choice] = [{"serve": "growth"}, {"rest_s": 2.0}]
    assert chosen(GOAL, task.space, worse, lambda choices: [1 + len(c) for c in choices]) == {}
    alike = chosen(GOAL, task.space, worse, lambda choices: [1 - bool(c) / 1000 for c in choices])
    assert alike == {}  # no difference to speak of
