"""The number of devices that a traffic needs, by windows of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mirage.config import ConfigError
from mirage.simulate.experiment import Experiment
from mirage.tools.report.slo import Slo
from mirage.tools.tune.fleet import counting, result
from mirage.tools.tune.fleet.command import FILES, SizeWish, parse_kinds, size
from mirage.tools.tune.fleet.counting import CountJob
from mirage.tools.tune.fleet.steps import STEPS
from mirage.tools.tune.fleet.trial import enough
from mirage.tools.tune.fleet.windows import windows

pytestmark = pytest.mark.pure

LOOSE = Slo(ttft_ms=2000, tpot_ms=100)


def experiment(**more: Any) -> Experiment:
    written = {
        "title": "three models",
        "tenants": [
            {"name": "a", "model": "llama-3-8b", "rate": 4.0},
            {"name": "b", "model": "qwen2.5-7b", "rate": 1.0},
            {"name": "c", "model": "opt-6.7b", "rate": 0.5},
        ],
        "limits": {"max_model_len": 512},
        "workload": {"arrivals": "poisson", "requests": 1, "lengths": "short"},
    }
    return Experiment.model_validate(written | more)


# -- windows ----------------------------------------------------------------------------


def test_windows_of_drawn_arrivals_differ_by_their_seeds() -> None:
    each = windows(experiment(), Path(), 7, 20.0)
    assert [window.seed for window in each] == [7, 8, 9, 10, 11]
    found = [window.rows() for window in each]
    assert all(sum(map(len, rows.values())) == 110 for rows in found)
    assert found[0] != found[1]


def test_windows_of_a_trace_lie_over_its_whole_length(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"2023-11-16 18:{s // 60:02}:{s % 60:02},10,5\n" for s in range(301))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    asked = experiment(
        tenants=[{"name": "a", "model": "llama-3-8b"}],
        workload={"arrivals": "trace", "file": str(path), "time_scale": 2.0},
    )
    each = windows(asked, tmp_path, 0, 100.0)
    assert [w.experiment.workload.window for w in each] == [
        (0, 50),
        (62.5, 112.5),
        (125, 175),
        (187.5, 237.5),
        (250, 300),
    ]
    assert [len(w.rows()["a"]) for w in each] == [50] * 5
    with pytest.raises(ConfigError, match="5 windows of 200 s need more"):
        windows(asked, tmp_path, 0, 200.0)


# -- a whole count ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_count_is_enough_and_the_same_again() -> None:
    (window, before, *_) = windows(experiment(), Path(), 0, 20.0)
    job = CountJob(window, before, Path(), "h100", LOOSE)
    found = job.run()
    assert found == job.run()
    counts = found["devices"]
    assert list(counts) == [step.name for step in STEPS]
    assert counts["dedicated"] == 3
    assert all(number == 1 for name, number in counts.items() if name != "dedicated")
    assert found["requests"] == 110


def test_limits_that_nobody_can_keep_have_no_count() -> None:
    (window, before, *_) = windows(experiment(), Path(), 0, 20.0)
    found = CountJob(window, before, Path(), "h100", Slo(ttft_ms=0.001)).run()
    assert set(found["devices"].values()) == {None}


def test_one_device_too_few_is_not_enough() -> None:
    (window, *_) = windows(experiment(), Path(), 0, 20.0)
    rows, (static, *_) = window.rows(), STEPS
    tight = Slo(ttft_ms=60, tpot_ms=16)
    together = {name: ["x"] for name in rows}
    apart = {name: [name] for name in rows}
    args = (static, rows, 20.0, tight)
    assert enough(window.experiment, Path(), "h100", list(rows), apart, *args)
    assert not enough(window.experiment, Path(), "h100", ["x"], together, *args)


def test_a_placement_for_unknown_requests_leaves_no_device_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: dict[str, list[set[str]]] = {step.name: [] for step in STEPS}

    def three_are_enough(*args: Any) -> bool:
        devices, placement, step = args[3:6]
        if len(devices) == 3:
            tried[step.name].append({name for places in placement.values() for name in places})
        return len(devices) >= 3

    monkeypatch.setattr(counting, "enough", three_are_enough)
    hot = [{"name": "a", "model": "llama-3-8b", "rate": 40.0}]
    cold = [{"name": name, "model": "qwen2.5-7b", "rate": 0.5} for name in "bc"]
    (window, before, *_) = windows(experiment(tenants=hot + cold), Path(), 0, 20.0)
    counts = CountJob(window, before, Path(), "h100", LOOSE).run()["devices"]
    assert counts["standing"] == counts["moving"] == 3
    assert tried["packing"][0] < {"d000", "d001", "d002"}, "best fit fills as few as it can"
    assert tried["standing"][0] == tried["moving"][0] == {"d000", "d001", "d002"}


@pytest.mark.slow
def test_the_command_writes_a_page_and_says_what_each_step_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    path = tmp_path / "three.yaml"
    written = experiment().model_dump(mode="json", exclude_defaults=True)
    path.write_text(yaml.safe_dump(written | {"devices": 3}))
    wish = SizeWish(["h100"], LOOSE, 10.0, 0, 1)
    built = size(path, wish, tmp_path / "out")
    assert json.loads((tmp_path / "out" / FILES[0]).read_text()) == built
    page = (tmp_path / "out" / FILES[1]).read_text()
    assert all(step.meaning in page for step in STEPS)
    said = capsys.readouterr().out
    line = "h100: 1.0 ± 0.0 devices by packing, instead of 3.0 ± 0.0; saved by packing 2.0 ± 0.0"
    assert line in said


def test_steps_without_a_number_are_said_so() -> None:
    runs = [
        {
            "hardware": "h100",
            "requests": 9,
            "trials": 1,
            "devices": dict.fromkeys([step.name for step in STEPS], number),
        }
        for number in (None, 4)
    ]
    built = result.build("t", "", 10.0, runs, [])
    row = next(iter(result.rows(built["kinds"]["h100"])))
    assert row[:4] == ("dedicated", "4.0", "-", "none, 4")
    assert "no number of devices" in next(
        iter(result.sentences(result.build("t", "", 1.0, runs[:1], [])))
    )


@pytest.mark.parametrize("text", ["", "h100,", "h100,h100"])
def test_kinds_are_written_once_each(text: str) -> None:
    with pytest.raises(ConfigError, match="write kinds of devices once each"):
        parse_kinds(text)


def test_a_servers_configuration_is_no_experiment(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("device: {memory: 1GiB}\n")
    with pytest.raises(ConfigError, match="counts them for an experiment"):
        size(path, SizeWish(["h100"], LOOSE, 10.0, 0, 1), tmp_path)
