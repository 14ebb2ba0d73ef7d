"""Simulations in processes of their own: results in order, and progress meanwhile."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from mirage.simulate.experiment import Experiment, Setup
from mirage.tools.report import progress
from mirage.tools.simulate.pool import SimulationJob, run_all
from mirage.tools.simulate.progress import counting

pytestmark = pytest.mark.pure
REQUESTS = 30


class Watcher:
    def __init__(self) -> None:
        self.ended, self.requests = 0, 0

    def run_ended(self) -> None:
        self.ended += 1

    def finished(self, requests: int) -> None:
        assert requests >= self.requests
        self.requests = requests


def jobs(peak: dict | None = None) -> list[SimulationJob]:
    tenants = [{"name": "a", "model": "llama-3-8b", "share": 60, "rate": 5}]
    workload = {"requests": REQUESTS, "peak": peak}
    setup = Setup(
        Experiment.model_validate({"title": "t", "tenants": tenants, "workload": workload})
    )
    return [
        SimulationJob(setup, policy, seed) for seed in (0, 1) for policy in ("static", "mirage")
    ]


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_jobs(processes: int) -> None:
    watcher = Watcher()
    found = run_all(jobs(), processes, watcher)
    assert [(f["policy"], f["seed"]) for f in found] == [(j.policy, j.seed) for j in jobs()]
    assert watcher.ended == 4
    assert watcher.requests == (0 if processes == 1 else 4 * REQUESTS)


def test_requests_of_a_peak_that_is_not_measured_never_count_backwards() -> None:
    watcher = Watcher()
    run_all(jobs({"requests": 10, "factor": 2}), 2, watcher)
    assert 0 < watcher.requests <= 4 * REQUESTS


def test_without_a_terminal_it_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    out = StringIO()
    with counting(3, Console(file=out), "claims") as seen:
        for requests in (10, 2_000, 30_000):
            now[0] += 6
            seen.finished(requests)
        seen.run_ended()
        now[0] += 5
        seen.finished(31_000)
    assert out.getvalue().splitlines() == [
        "claims: 0 of 3 runs, 2,000 requests, 12 s",
        "claims: 1 of 3 runs, 31,000 requests, 23 s",
    ]
