"""How often requests come where nobody says, and from where on they are too many for a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tune_case import write, write_trace

from mirage.config import Config, Policy, load
from mirage.report.slo import Slo
from mirage.tune.goals import Row, WindowResult
from mirage.tune.load import each_pressing
from mirage.tune.question import Options, ask
from mirage.tune.simulated import Run

pytestmark = pytest.mark.pure

LIMITS = Slo(ttft_ms=1000)
BORNE = {Policy.STATIC: 1.5, Policy.POOLED: 0.8, Policy.MIRAGE: 0.3}
"""Times the gaps, above which every request is in time."""


def machine(runs: Sequence[Run]) -> list[WindowResult | None]:
    """Stands for simulation."""
    late = [run.slower <= BORNE[run.config.policy] for run in runs]
    return [WindowResult((Row(9.0 if each else 0.1, 0.0, 0.0, 1.0, 5),), 1.0) for each in late]


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


def test_a_rate_is_that_of_the_searched_windows(tmp_path: Path) -> None:
    path = write(tmp_path, replay={"time_scale": 2.0})
    question = ask(path, Options(str(write_trace(tmp_path))))
    windows = question.cut.searched
    gaps = [
        b.arrival_s - a.arrival_s
        for window in windows
        for a, b in zip(window.requests, window.requests[1:], strict=False)
    ]
    assert question.rate(3.0) == pytest.approx(len(gaps) / sum(gaps) / 6)
