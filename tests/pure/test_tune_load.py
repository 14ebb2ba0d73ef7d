"""The rate of requests where none is given, and the rate that is too high for a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tune_case import write, write_trace

from mirage.config import Config, Policy, load
from mirage.profiles import Hardware
from mirage.simulate import build
from mirage.tools.report.slo import Slo
from mirage.tools.tune.goals import CompletedRequest, WindowResult
from mirage.tools.tune.load import computed_per_s, each_pressing
from mirage.tools.tune.question import TuneOptions, ask
from mirage.tools.tune.runs import runner
from mirage.tools.tune.simulated import WindowRun, simulate

pytestmark = pytest.mark.pure

LIMITS = Slo(ttft_ms=1000)
BORNE = {Policy.STATIC: 1.5, Policy.POOLED: 0.8, Policy.MIRAGE: 0.3}
"""Factor on the gaps between requests above which every request is in time, by policy."""


def machine(runs: Sequence[WindowRun]) -> list[WindowResult | None]:
    """Stand-in for a simulation: requests are late if they come faster than the window's policy
    bears.
    """
    late = [run.slower <= BORNE[run.config.policy] for run in runs]
    return [
        WindowResult((CompletedRequest(9.0 if each else 0.1, 0.0, 0.0, 1.0, 5),), 1.0)
        for each in late
    ]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(write(tmp_path))


def test_each_policy_has_its_own_and_lending_bears_the_most(config: Config) -> None:
    found = each_pressing(machine, config, LIMITS, [0], seed=0)  # type: ignore[arg-type]
    assert list(found) == ["static", "pooled", "mirage"]
    for policy, slower in found.items():
        assert slower <= BORNE[Policy(policy)] < 2**0.5 * slower, "the first of a row by roots of 2"


def test_a_configuration_of_another_policy_is_not_asked_as_mirage(config: Config) -> None:
    pooled = config.model_copy(update={"policy": Policy.POOLED})
    found = each_pressing(machine, pooled, LIMITS, [0], seed=0)  # type: ignore[arg-type]
    assert list(found) == ["static", "pooled"]


def computed(path: Path, **changes: Any) -> float:
    """Requests per second that a simulation of 20 requests in one window finds as the capacity."""
    question = ask(path, TuneOptions(str(write_trace(path.parent)), profile="h100"))
    bench = replace(question.bench(1.0), **changes)
    with runner(bench, 1, lambda: None) as run:
        return computed_per_s(run, question.config, [0], 20, seed=0)


def test_what_is_computed_depends_on_the_machine_alone(tmp_path: Path) -> None:
    path = write(tmp_path)
    once = computed(path)
    assert computed(path, time_scale=9.0) == once, "no time of the trace counts"
    hardware = ask(path, TuneOptions(str(tmp_path / "trace.csv"), profile="h100")).machine.hardware
    assert computed(path, hardware=slower(hardware, 2.0)) == pytest.approx(once / 2, rel=0.02)


def test_memory_does_not_bind_what_is_computed(tmp_path: Path) -> None:
    """The capacity is the same with twice the device memory, because the simulation finds it
    without a bound on memory.
    """
    large = write(tmp_path / "large", device={"kind": "cuda", "memory": "1280MiB", "page": "2MiB"})
    assert computed(large) == pytest.approx(computed(write(tmp_path / "small")), rel=0.01)


def slower(hardware: Hardware, times: float) -> Hardware:
    """Hardware profile in which each part of a step takes `times` as long."""
    longer = ("step_overhead_ms", "sequence_overhead_us")
    less = ("bandwidth_gb_s", "compute_tflop_s")
    found = dict.fromkeys(longer, times) | dict.fromkeys(less, 1 / times)
    changed = {
        name: getattr(hardware, name).model_copy(
            update={"value": getattr(hardware, name).value * factor}
        )
        for name, factor in found.items()
    }
    return hardware.model_copy(update=changed)


def test_in_a_closed_loop_so_many_are_always_under_way(tmp_path: Path) -> None:
    question = ask(write(tmp_path), TuneOptions(str(write_trace(tmp_path)), profile="h100"))
    result = simulate(question.bench(1.0), WindowRun(question.config, 0, 0, at_once=3))
    assert result is not None
    rows = result.rows
    assert len(rows) == len(question.cut.searched[0].requests)
    begins = sorted(row.ended - row.e2el for row in rows)
    ends = sorted(row.ended for row in rows)
    assert begins[:3] == pytest.approx([0.0] * 3, abs=1e-9)
    assert begins[3:] == pytest.approx(ends[:-3], abs=1e-9), "one comes when one has ended"


def test_a_rate_is_that_of_the_searched_windows(tmp_path: Path) -> None:
    path = write(tmp_path, replay={"time_scale": 2.0})
    question = ask(path, TuneOptions(str(write_trace(tmp_path))))
    windows = question.cut.searched
    gaps = [
        b.arrival_s - a.arrival_s
        for window in windows
        for a, b in zip(window.requests, window.requests[1:], strict=False)
    ]
    assert question.rate(3.0) == pytest.approx(len(gaps) / sum(gaps) / 6)


def test_a_closed_loop_is_the_same_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window with three requests at a time has the same results with spans of many steps as with
    single steps.
    """
    question = ask(write(tmp_path), TuneOptions(str(write_trace(tmp_path)), profile="h100"))
    run = WindowRun(question.config, 0, 0, at_once=3)
    skipping = simulate(question.bench(1.0), run)
    each = partial(build.world, skipping=False)
    monkeypatch.setattr("mirage.tools.tune.simulated.build.world", each)
    stepping = simulate(question.bench(1.0), run)
    assert skipping is not None
    assert stepping is not None
    assert skipping.rows == stepping.rows
