"""Import contracts of pyproject.toml: the packages keep all of them, and a forbidden import breaks
the contract that bans it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
PACKAGES = ("mirage", "vmm", "scheduler", "traces", "configs")
LINT = "import sys; from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    """Finished run of `lint-imports` with the contracts of pyproject.toml on the packages below
    `root`.
    """
    return subprocess.run(
        [sys.executable, "-c", LINT], cwd=root, capture_output=True, text=True, timeout=120
    )


def test_every_contract_is_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("house")
    shutil.copy(ROOT / "pyproject.toml", root)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("*.csv"))
    return root


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("mirage/workload/trace.py", "import mirage.serve.router", "nobody imports upwards"),
        ("mirage/simulate/engine.py", "import mirage.serve.fit.fit", "nobody imports upwards"),
        ("mirage/doctor/command.py", "import mirage.tools.report", "by the command line alone"),
        ("mirage/simulate/run.py", "import mirage.tools.tune.goals", "by the command line alone"),
        ("mirage/tools/replay/run.py", "import mirage.tools.tune", "none imports upwards"),
        ("scheduler/victims.py", "import mirage.config", "nobody imports upwards"),
        ("mirage/control/planner.py", "import time", "no clock"),
        ("mirage/serve/fit/fit.py", "import vllm", "vLLM is imported"),
        ("mirage/engine/backend.py", "import cuda.bindings", "cuda-python is imported"),
        ("mirage/machines/agent.py", "import ray", "Ray is imported"),
        ("mirage/machines/ray/store.py", "import redis", "client of Redis is imported"),
        ("mirage/machines/ray/actor.py", "import mirage.serve.fit.fit", "nobody imports upwards"),
        ("mirage/simulate/build.py", "import benchmarks.bounds", "in no wheel"),
        ("vmm/driver.py", "import vmm.host", "no circle"),
    ],
)
def test_a_contract_that_is_broken_is_named(copy: Path, file: str, line: str, broken: str) -> None:
    path = copy / file
    before = path.read_text()
    path.write_text(f"{before}\n{line}\n")
    try:
        done = lint(copy)
    finally:
        path.write_text(before)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [text for text in done.stdout.splitlines() if " BROKEN" in text]
    assert any(broken in text for text in lines), lines
