"""A claim's figures have an interval over seeds, and its verdict the seeds that bear it."""

from __future__ import annotations

import pytest

from benchmarks.claims.judging import NEAR, Compared, Results, Span
from benchmarks.claims.page import markdown, ours

pytestmark = pytest.mark.lab
KEY = "output_throughput"


def row(*loads: list[float], paper: float = 50.0) -> dict[str, object]:
    """Judged claim over several loads; each of `loads` has the change in per cent for each seed."""
    names = tuple(f"load {number}" for number in range(len(loads)))
    seeds = range(len(loads[0]))
    runs = {(name, "static", seed): {KEY: 100.0} for name in names for seed in seeds}
    for name, changes in zip(names, loads, strict=True):
        runs |= {(name, "mirage", s): {KEY: 100.0 + c} for s, c in enumerate(changes)}
    needs = tuple((name, policy) for name in names for policy in ("mirage", "static"))
    claim = Compared(
        "M0", "a claim", "+50 %", needs=needs, scenes=names, figures={"tokens/s": (paper, (KEY,))}
    )
    return {**vars(claim), **claim.judged(Results(list(seeds), runs)), "seeds": list(seeds)}


def test_the_interval_is_over_seeds_and_the_range_over_loads() -> None:
    said = row([49.0, 50.0, 51.0], [58.0, 60.0, 62.0])
    # Student's t with two degrees of freedom: 4.303 standard errors.
    assert said["measured"][KEY] == Span(50.0, 60.0, round(4.303 * 2 / 3**0.5, 1))
    assert ours(said) == "throughput +50.0 … +60.0 % (± 5.0)"


@pytest.mark.parametrize(
    ("changes", "verdict", "holds"),
    [
        ([50.0, 50.0 + NEAR, 50.0 - NEAR], "reproduced", [3, 3]),
        ([50.0, 61.0, 52.0], "reproduced", [2, 3]),
        ([20.0, 30.0, 50.0], "direction", [3, 3]),
        ([20.0, 30.0, -1.0], "direction", [2, 3]),
        ([-20.0, -30.0, 1.0], "not reproduced", [3, 3]),
    ],
)
def test_seeds_that_bear_the_verdict_or_a_better_one_are_counted(
    changes: list[float], verdict: str, holds: list[int]
) -> None:
    said = row(changes)
    assert (said["verdict"], said["holds"]) == (verdict, holds)
    said |= {"table": None, "judged": None}
    assert f"| {verdict} | {holds[0]} of {holds[1]} |" in markdown([said], [0, 1, 2], None)


def test_one_seed_has_no_interval() -> None:
    assert ours(row([50.0])) == "throughput +50.0 %"
