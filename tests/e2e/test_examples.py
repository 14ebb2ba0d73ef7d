"""The examples run as their page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


def run(*words: str, limit_s: float = 400) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.rare
def test_two_models_are_served_and_asked() -> None:
    pytest.importorskip("vllm")
    said = run(sys.executable, "examples/serve_and_ask.py")
    for name in ("opt", "llama"):
        assert f"{name} answers " in said and f"{name} holds " in said


def test_the_controller_is_a_library() -> None:
    said = run(sys.executable, "examples/decide.py")
    assert "0 s: chat: Allotment(revision=1, layers_remapped=0" in said
    assert float(said.split("to ")[-1].split()[0]) > 24, "the busy one got more than its half"


@pytest.mark.parametrize("name", ["replay_two_policies", "simulate_one"])
def test_what_the_shell_examples_ask_for_is_understood(name: str, tmp_path: Path) -> None:
    """Each option in the shell examples is one of its command's, and each file of configs/ exists.
    `replay` and `simulate` have tests of their own.
    """
    text = (ROOT / "examples" / f"{name}.sh").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.startswith(".venv/bin/mirage")]
    assert lines
    for _, command, *options in lines:
        said = run(sys.executable, "-m", "mirage", command, "--help")
        for option in options:
            assert not option.startswith("--") or option in said, option
            assert not option.startswith("configs/") or (ROOT / option).exists(), option


@pytest.mark.slow
def test_one_experiment_is_simulated() -> None:
    words = (
        (ROOT / "examples" / "simulate_one.sh").read_text().split(".venv/bin/mirage ")[1].split()
    )
    said = run(sys.executable, "-m", "mirage", *words)
    assert "result.json" in said
