"""`mirage tune --live`: the result follows measured runs; finished runs are kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from refusing import refused
from tune_case import write, write_trace

from mirage.config import load
from mirage.tools.replay import child
from mirage.tools.replay.policies import ReplayVariant
from mirage.tools.tune import live
from mirage.tools.tune.answer import TuneWish
from mirage.tools.tune.command import command as repeating
from mirage.tools.tune.command import tune
from mirage.tools.tune.question import TuneOptions

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FAKE = Path(__file__).parent / "fake_serve.py"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the configurations with which servers were started; all servers are fakes."""
    names: list[str] = []

    def serve_command(
        path: Path, variant: ReplayVariant, ready_file: Path, memory: int | None
    ) -> list[str]:
        load(path)
        names.append(path.stem)
        mode = "die" if len(names) == 3 and names[0] == "dies" else "answer"
        return [sys.executable, str(FAKE), variant.name, str(ready_file), mode]

    monkeypatch.setattr(child, "serve_command", serve_command)
    monkeypatch.setattr(live, "check", lambda config: None)
    return names


@pytest.mark.rare
def test_runs_take_turns_are_kept_and_decide(
    started: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, trace = write(tmp_path), write_trace(tmp_path)
    options, output = TuneOptions(str(trace), "h100"), tmp_path / "out"
    wish = TuneWish(trials=4, processes=1, live=1, live_repeats=2)
    found = tune(path, options, wish, output)
    report = json.loads((output / "tune.json").read_text())
    entered = list(report["live"]["measured"])
    half = len(started) // 2
    assert half == len(entered) >= 2
    assert started[:half] == started[half:], "in turns"
    assert report["live"]["requests"] == len(found.judged["tuned"].outcomes[0].rows)
    for each in report["live"]["measured"].values():
        assert each["completed"] == [report["live"]["requests"]] * 2
        assert each["requests"] > 0
        assert len(each["repeats"]) == 2
    winner = report["live"]["winner"]
    assert winner in entered
    on_engines, few = report["sentences"][3:]
    assert on_engines.startswith("On the real engines, median of 2 runs of")
    assert few.endswith("take a longer window or trace, of 100 requests at least.")
    assert "--live 1 --live-repeats 2" in " ".join(report["command"])
    assert repeating(path, options, wish, found, output) == report["command"]
    page = (output / "tune.html").read_text()
    assert "On the real engines" in page
    said = capsys.readouterr()
    assert "on real engines" in said.out
    assert f"{len(started)} runs on real engines, about" in said.err

    again = len(started)
    kept = (output / "live" / "runs.jsonl").read_text().splitlines()
    (output / "live" / "runs.jsonl").write_text("\n".join([*kept[:-1], kept[-1][:40]]))
    tune(path, options, wish, output)
    assert started[again:] == [started[again - 1]], "only the one that was half written"
    *_, half_written, last = (output / "live" / "runs.jsonl").read_text().splitlines()
    assert half_written == kept[-1][:40] and json.loads(last)["rows"], "each has its own line"
    assert json.loads((output / "tune.json").read_text())["live"]["winner"] in entered


def test_engines_that_cannot_run_here_are_told_before_the_search(tmp_path: Path) -> None:
    path = write(tmp_path, device={"memory": "640MiB"})
    words = ("tune", str(path), "--live", "2", "--profile", "h100", "--output", str(tmp_path / "o"))
    done = subprocess.run(
        [sys.executable, "-m", "mirage", *words], capture_output=True, text=True, timeout=120
    )
    assert "tenant 'chat': " in refused(done)
    assert not (tmp_path / "o" / "trials.db").exists()


@pytest.mark.rare
def test_live_on_the_demonstration_models(tmp_path: Path) -> None:
    from mirage.tools.demo.models import make_models

    make_models(tmp_path / "models")
    root = Path(__file__).parent.parent.parent
    text = (root / "configs" / "demo.yaml").read_text().replace("../out/models", "models")
    path = tmp_path / "demo.yaml"
    path.write_text(text.replace("max_num_seqs: 10", "max_num_seqs: 8"))
    trace = tmp_path / "t.yaml"
    trace.write_text("kind: synthetic\nrate: 5\nlengths: alpaca\nrequests: 80\n")
    wish = TuneWish(trials=2, processes=1, live=1, live_repeats=1)
    tune(path, TuneOptions(str(trace), "host"), wish, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "tune.json").read_text())
    requests = report["live"]["requests"]
    assert all(each["completed"] == [requests] for each in report["live"]["measured"].values())
    tuned = load(tmp_path / "out" / "tuned.yaml")
    assert [tenant.name for tenant in tuned.tenants] == ["opt", "llama", "qwen3"]
