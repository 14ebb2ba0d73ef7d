"""A wheel of the sources, installed elsewhere, works as the checkout does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from mirage.cli import CLUSTER, TOOLS

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PACKAGES = ("mirage", "vmm", "scheduler", "traces", "configs")
BESIDE = ("benchmarks", "tests", "examples")
"""Folders of the repository that are in no wheel."""
TREE = (*PACKAGES, *BESIDE, "pyproject.toml", "README.md", "LICENSE")

Run = Callable[..., str]


def copied(source: Path) -> Path:
    """Copy of the sources of the distribution, without generated files."""
    source.mkdir()
    for name in TREE:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which a wheel of the sources was installed."""
    wheels, target = (tmp_path_factory.mktemp(n) for n in ("wheels", "target"))
    source = copied(tmp_path_factory.mktemp("tree") / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    quiet = {"cwd": source, "check": True, "timeout": 300}
    subprocess.run([*pip, "wheel", "--no-deps", "-w", wheels, source], **quiet)  # type: ignore[call-overload]
    (wheel,) = wheels.glob("mirage_kv-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], **quiet)  # type: ignore[call-overload]
    return target


@pytest.fixture
def mirage(installed: Path, tmp_path: Path) -> Run:
    """Function that runs the installed command where the checkout cannot be imported."""
    guard = tmp_path / "sitecustomize.py"
    guard.write_text(f"import sys\nsys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{installed}", "PYTHONSAFEPATH": "1"}

    def run(*words: str, limit_s: float = 300) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mirage", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = "import mirage, configs; print(mirage.__file__, configs.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert found.stdout.count(str(installed)) == 2, found.stdout + found.stderr
    return run


def test_everything_that_the_packages_need_is_in_it(installed: Path) -> None:
    for path in ("traces/sample.csv", "configs/demo.yaml", "configs/hardware/gh200.yaml"):
        assert (installed / path).exists(), path
    tracked = subprocess.run(
        ["git", "ls-files", "mirage", "vmm", "scheduler", "traces", "configs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert [path for path in tracked if not (installed / path).exists()] == []
    others = {path.name for path in installed.iterdir()} - set(PACKAGES)
    assert not [name for name in others if not name.startswith(("mirage_kv-", "bin"))], others
    (metadata,) = installed.glob("mirage_kv-*.dist-info")
    assert (metadata / "licenses" / "LICENSE").exists()


@pytest.mark.rare
def test_an_experiment_is_simulated(mirage: Run, installed: Path, tmp_path: Path) -> None:
    file = installed / "configs" / "experiments" / "c1.yaml"
    said = mirage("simulate", str(file), "--seeds", "0", "--output", "out", limit_s=600)
    assert "output tokens per s" in said and (tmp_path / "out/report.html").exists()


@pytest.mark.rare
def test_models_are_made_checked_and_replayed(mirage: Run, installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    mirage("models", "out/models")
    (tmp_path / "configs").mkdir()
    shutil.copy(installed / "configs" / "demo.yaml", tmp_path / "configs")
    assert "llama: LlamaForCausalLM" in mirage("check", "configs/demo.yaml")
    words = "replay configs/demo.yaml --trace sample --policy pooled --limit 5 --output out/replay"
    assert "5 requests of sample" in mirage(*words.split(), "--time-scale", "0.1", limit_s=500)
    assert (tmp_path / "out/replay/report.html").exists()


@pytest.mark.rare
def test_an_installation_without_extras_serves_and_names_the_one_that_is_missing(
    tmp_path: Path,
) -> None:
    """After `pip install .` in an empty environment, `check` and `serve` run, and `tune` names the
    extra that it needs.
    """
    source = copied(tmp_path / "source")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "new"], check=True, timeout=120)
    python = tmp_path / "new" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", source], check=True, timeout=600)
    listed = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True)
    assert "mirage-kv @ file:" in listed.stdout
    assert not [name for name in (*TOOLS, *CLUSTER) if f"{name}==" in listed.stdout]

    def run(*words: str) -> tuple[int, str]:
        command = [tmp_path / "new" / "bin" / "mirage", *words]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env={}
        )
        return done.returncode, done.stdout + done.stderr

    assert run("--version") == (0, f"mirage {version('mirage-kv')}\n")
    for command in ("check", "serve"):
        assert run(command, "absent.yaml") == (
            2,
            "mirage: error: absent.yaml: cannot be read (No such file or directory)\n",
        )
    status, said = run("doctor")
    assert "host" in said and "Traceback" not in said
    status, said = run("tune", "absent.yaml")
    assert status == 2 and "pip install '.[tools]'" in said and said.count("\n") == 1
