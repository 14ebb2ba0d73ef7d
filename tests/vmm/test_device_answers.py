"""Answers and ends of the new process that looks at a GPU, over the driver's stand-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.vmm.conftest import standin as loaded
from vmm.faults import FAULTS, Fault

pytestmark = pytest.mark.vmm
ROOT = Path(__file__).parents[2]
PROGRAM = """
from tests.vmm.libcuda import StandIn
made = StandIn.load()
{setup}
from mirage.serve.health.device_answers import main
main(0)
"""


def ask(setup: str) -> tuple[int, str]:
    loaded()  # or this is skipped
    words = [sys.executable, "-c", PROGRAM.format(setup=setup)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "setup", ["", "made.fail(1, 'cuMemCreate', 2)"], ids=["well", "without free memory"]
)
def test_a_device_that_can_be_used_is_well(setup: str) -> None:
    assert ask(setup) == (0, "")


@pytest.mark.parametrize(
    "fault", [FAULTS[f"CUDA_ERROR_{n}"] for n in ("NO_DEVICE", "UNKNOWN", "ECC_UNCORRECTABLE")]
)
def test_one_that_cannot_is_told_in_a_line(fault: Fault) -> None:
    code, said = ask(f"made.fault({fault.number})")
    assert code == 1 and said.count("\n") == 1 and fault.name in said


def test_one_that_fails_only_when_it_computes_is_told_as_well() -> None:
    code, said = ask("made.fail(1, 'cuStreamSynchronize', 719)")
    assert code == 1 and "CUDA_ERROR_LAUNCH_FAILED" in said


def test_a_machine_without_devices() -> None:
    code, said = ask("made.flags(devices=0)")
    assert code == 1 and said
