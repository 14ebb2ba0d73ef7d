"""Intervals and differences of repeated runs, and the tables and JSON of `mirage compare`."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mirage.tools.compare.command import compare_command
from mirage.tools.report.intervals import Difference, difference, mean
from mirage.tools.report.repeats import merged

pytestmark = pytest.mark.pure


def test_an_interval_by_hand() -> None:
    found = mean([1.0, 2.0, 3.0])
    assert found.value == 2
    assert found.half == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4), "t at 2 degrees, 97.5 %"
    assert mean([5.0]).half is None


def test_most_intervals_hold_the_truth() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(1000):
        found = mean(list(rng.normal(10, 3, 4)))
        assert found.half is not None
        held += abs(found.value - 10) <= found.half
    assert 930 <= held <= 970


def test_noise_is_called_so_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(6)
    draws = [difference(list(rng.normal(10, 1, 5)), list(rng.normal(10, 1, 5))) for _ in range(500)]
    assert sum(draw.more_than_noise is True for draw in draws) < 45


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=1), st.lists(st.floats(1, 1e6), min_size=1))
def test_one_run_tells_no_difference(one: list[float], others: list[float]) -> None:
    assert difference(one, others).more_than_noise is None


def test_constants_differ_or_not() -> None:
    assert difference([2.0, 2.0], [2.0, 2.0]) == Difference(1.0, False)
    assert difference([3.0, 3.0], [2.0, 2.0]) == Difference(1.5, True)
    assert difference([3.0, 3.0], [0.0, 0.0]) == Difference(None, True)


def test_runs_become_one_column() -> None:
    runs = [
        {"policy": "mirage", "a": 1.0, "b": None, "tenants": {"x": {"a": 1}}},
        {"policy": "mirage", "a": 3.0, "b": 2.0, "tenants": {"x": {"a": 5}}},
    ]
    found = merged(runs)
    assert (found["policy"], found["a"], found["b"], found["repeats"]) == ("mirage", 2.0, None, 2)
    assert set(found["intervals"]) == {"a"}
    assert found["tenants"]["x"]["a"] == 3


def report(policies: dict[str, list[float]], seed: int = 0) -> dict[str, Any]:
    runs = [
        {"policy": policy, "interrupted": False, "p99_ttft_ms": value, "completed": 10}
        for policy, values in policies.items()
        for value in values
    ]
    return {"schema_version": 1, "requests": 10, "trace": "sample", "seed": seed, "runs": runs}


def run(tmp_path: Path, *contents: Any, options: tuple[str, ...] = ()) -> Any:
    files = []
    for number, content in enumerate(contents):
        file = tmp_path / f"{number}.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        files.append(str(file))
    app = typer.Typer()
    app.command()(compare_command)
    return CliRunner().invoke(app, [*files, *options], env={"COLUMNS": "200"})


def test_two_files_with_what_differs_and_what_is_noise(tmp_path: Path) -> None:
    ours, theirs = report({"mirage": [10.0, 11.0, 10.5]}), report({"static": [30.0, 31.0, 30.2]})
    result = run(tmp_path, theirs, ours)
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if "TTFT P99" in line)
    assert "30.4 ± 1.3" in line and "10.5 ± 1.2 0.35× differs" in line
    again = run(tmp_path, theirs, report({"mirage": [29.0, 33.0, 30.2]}))
    line = next(line for line in again.output.splitlines() if "TTFT P99" in line)
    assert "within noise" in line


def test_single_runs_and_other_requests_are_remarked(tmp_path: Path) -> None:
    result = run(tmp_path, report({"static": [30.0]}), report({"static": [10.0]}, seed=4))
    assert "0.33×" in result.output and "differs" not in result.output
    assert "A single run has no interval" in result.output
    assert "did not serve the same requests" in result.output
    assert f"static, {tmp_path}/0.json" in result.output


def test_json_has_it_unrounded(tmp_path: Path) -> None:
    both = report({"static": [30.0, 30.5], "mirage": [10.0, 10.25]})
    result = run(tmp_path, both, options=("--json",))
    told = json.loads(result.output)
    assert [column["name"] for column in told["columns"]] == ["static", "mirage"]
    (ttft,) = [one for one in told["differences"] if one["figure"] == "p99_ttft_ms"]
    assert ttft["ratio"] == pytest.approx(20.25 / 60.5) and ttft["more_than_noise"] is True


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "no JSON"),
        ([], "no report.json of `mirage replay`"),
        ({"schema_version": 9}, "no report.json of `mirage replay`"),
        ({"schema_version": 1, "runs": "x"}, "no report.json"),
        ({"schema_version": 1, "runs": []}, "holds no whole run"),
        (report({"static": [1.0]}), "holds 'static' alone: name a second file"),
    ],
)
def test_what_cannot_be_compared_is_one_line(tmp_path: Path, content: Any, says: str) -> None:
    result = run(tmp_path, content)
    assert result.exit_code == 2
    assert result.output.startswith("mirage: error: ") and says in result.output
    assert result.output.count("\n") == 1


def test_figures_of_tiers_are_compared_where_there_are_any(tmp_path: Path) -> None:
    from mirage.tools.compare.columns import columns
    from mirage.tools.compare.rows import rows

    def report(policy: str, found: int) -> dict[str, Any]:
        run = {"policy": policy, "interrupted": False, "p50_ttft_later_ms": 50.0 + found}
        return {"schema_version": 1, "runs": [run | {"tokens_from_host": found, "late_loads": 0}]}

    both = [*columns("a", report("mirage", 0)), *columns("b", report("mirage-tiers", 9))]
    labels = [row.label for row in rows(both)]
    assert labels == ["TTFT of later turns P50, ms", "tokens found in host memory"]
