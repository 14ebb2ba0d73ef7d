"""Rows of `make gpu-...` that hang or die are ended in time, and leave no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu import stepping
from benchmarks.gpu.plan import Step
from benchmarks.gpu.rows import Row
from benchmarks.gpu.watch import Child, watched
from tests.vmm import hanging
from tests.vmm.conftest import standin

pytestmark = pytest.mark.vmm
ROOT = Path(__file__).parents[2]
PATIENCE_S = 30


def step(name: str, limit_s: float) -> Step:
    return Step(f"tests.vmm.hanging.{name}", limit_s)


def rows(*steps: Step, seconds: float = 120) -> list[Row]:
    standin()
    start = partial(Child, dry=True)
    return list(watched(steps, start(), start, seconds))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["in_the_driver", "with_the_lock"])
def test_a_call_that_never_returns_is_ended_at_its_limit_and_the_next_row_comes(how: str) -> None:
    *found, hung, last = rows(step(how, 8), step("good", 60))
    assert [row.name for row in found] == (["before it"] if how == "in_the_driver" else [])
    assert hung.name == f"hanging.{how}" and hung.holds is False
    assert hung.value == "ended: not done after 8 s"
    assert last.name == "good"


def test_a_process_that_ends_is_a_miss_and_the_next_row_comes() -> None:
    ended, last = rows(step("ends", 60), step("good", 60))
    assert ended.holds is False
    assert ended.value == f"its process ended, exit code -{int(signal.SIGSEGV)}"
    assert last.name == "good"


def test_a_row_has_its_limit_or_what_is_left_and_is_not_begun_with_too_little() -> None:
    whole, less, none, small = rows(
        step("good", 50), step("good", 150), step("good", 900), step("good", 20), seconds=100
    )
    assert whole.value == "50 s" and 90 <= int(less.value.split()[0]) <= 100
    assert none.holds is None and none.name == "hanging.good"
    assert none.value.startswith("skipped: not begun:") and none.value.endswith("left, of 900")
    assert small.value == "20 s"


def test_a_row_that_raises_is_a_miss_with_the_assertion() -> None:
    (row,) = stepping.rows("tests.vmm.hanging.asserts", None)
    assert row.name == "hanging.asserts"
    assert row.holds is False and "failed: raise AssertionError (" in row.value


def gone(pid: int) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def written(path: Path) -> int:
    end = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end, "nothing was started"
        time.sleep(0.01)
    return int(path.read_text())


COMMAND = """
from functools import partial
from benchmarks.gpu.plan import Step
from benchmarks.gpu.watch import Child, watched
start = partial(Child, dry=True)
list(watched([Step("tests.vmm.hanging.beside_a_child", 500)], start(), start))
"""


def test_who_is_killed_leaves_no_child_and_no_engine(tmp_path: Path) -> None:
    standin()
    held = tmp_path / "held"
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND], cwd=ROOT, env=os.environ | {hanging.HELD: str(held)}
    )
    engine = written(held)
    (row,) = psutil.Process(command.pid).children()
    assert psutil.pid_exists(engine)
    command.kill()
    command.wait()
    assert gone(row.pid), "the process of the row, which hangs with Python's lock"
    assert gone(engine), "the engine that it had started"


@pytest.mark.slow
def test_an_engine_ends_with_the_row_that_was_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    monkeypatch.setenv(hanging.HELD, str(held))
    (row,) = rows(step("beside_a_child", 4))
    assert row.value == "ended: not done after 4 s"
    assert gone(written(held))
