"""`mirage profile` as a command: refusals, kept parts, written files; slow: a whole profile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from pages import keep_parts

from mirage.config import load
from mirage.profiles import hardware
from mirage.tools.demo.models import make_models
from mirage.tools.profile.measuring import Measuring
from mirage.tools.profile.plan import QUICK

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def start(
    *words: str, folder: Path, more: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mirage", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"} | dict(more or {}),
    )


def mirage(*words: str, folder: Path, timeout_s: float = 180) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command of `mirage`."""
    process = start(*words, folder=folder)
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with c.yaml, a configuration of one small model in turns."""
    made = tmp_path_factory.mktemp("profile")
    paths = make_models(made / "models", which=["llama"], layers=4)
    tenant = {"name": "a", "model": str(paths["llama"]), "share": 90, "max_model_len": 128}
    write(made / "c.yaml", tenants=[tenant | {"max_num_seqs": 4}])
    return made


def write(path: Path, **changes: Any) -> None:
    content = {
        "device": {"memory": "32MiB"},
        "dtype": "float32",
        "sharing": {"mode": "temporal"},
        "tenants": [{"name": "a", "model": "nowhere", "share": 90}],
    }
    path.write_text(yaml.safe_dump(content | changes))


@pytest.mark.parametrize(
    ("words", "changes", "said"),
    [
        (["--output", "p.json"], {}, "--output p.json: name a file that ends in .yaml"),
        (["--output", "c.yaml/x.yaml"], {}, "--output c.yaml/x.yaml: cannot be written"),
        ([], {}, "tenant 'a':"),
        ([], {"device": {"memory": "1GiB", "profile": 3}}, "device.profile:"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    tmp_path: Path, words: list[str], changes: dict[str, Any], said: str
) -> None:
    write(tmp_path / "c.yaml", **changes)
    code, out, err = mirage("profile", "c.yaml", *words, folder=tmp_path)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("mirage: error: ") and said in line


def keep(folder: Path, output: Path, without: str = "") -> None:
    """Store all parts of a profile except `without`, as if they had just been measured."""
    measuring = Measuring(folder / "c.yaml", load(folder / "c.yaml"), QUICK)
    keep_parts(measuring, output, without)


def test_what_was_measured_is_not_measured_again(folder: Path) -> None:
    output = folder / "kept.yaml"
    keep(folder, output)
    code, out, err = mirage("profile", "c.yaml", "--quick", "--output", output.name, folder=folder)
    assert code == 0, err
    assert [line.partition(": ")[2] for line in err.splitlines()[:4]] == (
        ["measured before, not again"] * 4
    )
    assert out.startswith("link 10 GB/s, a layer in 0.315 ms; a step ")
    read = hardware(str(output))
    assert read.link_gb_s.value == pytest.approx(10)
    assert read.link_mixed_gb_s.value == pytest.approx(5)
    assert json.loads(output.with_suffix(".json").read_text())["schema_version"] == 1
    assert output.with_suffix(".html").read_text().count("<svg") == 4


def test_explain_reads_the_file_that_the_configuration_names(folder: Path) -> None:
    output = folder / "named.yaml"
    keep(folder, output)
    assert mirage("profile", "c.yaml", "--quick", "--output", output.name, folder=folder)[0] == 0
    changed = yaml.safe_load((folder / "c.yaml").read_text())
    changed["device"]["profile"] = output.name
    (folder / "d.yaml").write_text(yaml.safe_dump(changed))
    code, out, err = mirage("explain", "d.yaml", folder=folder)
    assert code == 0, err
    assert out.splitlines()[0].endswith("link 10 GB/s")
    assert "device.profile" in out.splitlines()[0]


@pytest.mark.slow
def test_only_the_part_that_is_missing_is_measured(folder: Path) -> None:
    output = folder / "one.yaml"
    keep(folder, output, without="message")
    code, _, err = mirage("profile", "c.yaml", "--quick", "--output", output.name, folder=folder)
    assert code == 0, err
    told = [line for line in err.splitlines() if line.startswith("[")]
    assert "[3/4] message: measuring, 0 s" in told
    said = [line for line in told if ": measuring, " not in line]
    assert [line.endswith("not again") for line in said] == [True, True, False, True]
    found = json.loads(output.with_suffix(".json").read_text())
    assert found["message_s"]["count"] == QUICK.asks
    assert found["message_s"]["low"] > 0


@pytest.mark.rare
def test_interrupted_and_resumed_on_a_real_engine_it_ends_with_a_whole_profile(
    folder: Path,
) -> None:
    words = "profile", "c.yaml", "--quick", "--output", "real.yaml"
    first = start(*words, folder=folder)
    wait_for(folder / "real.parts" / "transfers.json", first)
    below = psutil.Process(first.pid).children(recursive=True)
    assert [p for p in below if "mirage.engine.forkserver" in p.cmdline()]
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=180)
    assert first.returncode == 130, err
    assert not psutil.wait_procs(below, timeout=60)[1]
    assert not [p for p in psutil.process_iter(["cmdline"]) if _mentions(p, folder)]
    assert not (folder / "real.yaml").exists()
    code, out, err = mirage(*words, folder=folder, timeout_s=400)
    assert code == 0, err
    assert "[1/4] transfers: measured before, not again" in err
    check_whole(folder / "real.yaml")
    assert str(folder) not in out


@pytest.mark.slow
def test_killed_it_leaves_no_process_and_no_folder(folder: Path, tmp_path: Path) -> None:
    base = tempfile.mkdtemp(prefix="k-", dir="/tmp")
    words = "profile", "c.yaml", "--quick", "--output", str(tmp_path / "killed.yaml")
    process = start(*words, folder=folder, more={"TMPDIR": base})
    try:
        wait_for(tmp_path / "killed.parts" / "engine%20a.log", process)
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate(timeout=60)
        assert len(below) >= 3  # vLLM's process, the fork that measures, what ends them
        assert not psutil.wait_procs(below, timeout=60)[1]
        assert not list(Path(base).iterdir())
    finally:
        process.kill()
        shutil.rmtree(base)


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    while not file.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def check_whole(file: Path) -> None:
    """Check that each figure of a profile was measured on this machine, and that none is
    impossible.
    """
    read = hardware(str(file))
    assert read.step_overhead_ms.value > 0
    assert read.link_gb_s.value >= read.link_mixed_gb_s.value > 0
    found = json.loads(file.with_suffix(".json").read_text())
    (tenant,) = found["tenants"].values()
    kinds = {(bool(s["sequences"]), bool(s["prefill"])) for s in tenant["samples"]}
    assert kinds == {(True, False), (False, True), (True, True)}
    assert all(s["seconds"] > 0 and s["fitted_s"] > 0 for s in tenant["samples"])
    assert tenant["load_s"]["count"] == QUICK.copies
    assert found["serving"]["latency_s"] >= 0


def _mentions(process: psutil.Process, folder: Path) -> bool:
    return any(str(folder) in word for word in process.info["cmdline"] or [])
