"""The measurement of one message ends with its engine, and when it is interrupted."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from left_shared import shared_files
from supervised import assert_gone, write_config

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
MEASURES = """
import sys
from mirage.tools.profile import message
message.ANSWERS_S = 3600.0
print(message.measure({"config": sys.argv[1], "asks": int(sys.argv[2])}))
"""


def interrupt(measuring: psutil.Process, engine: psutil.Process) -> None:
    measuring.send_signal(signal.SIGINT)


def kill(measuring: psutil.Process, engine: psutil.Process) -> None:
    engine.kill()


def begin(folder: Path, asks: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MEASURES, write_config(folder, "a"), str(asks)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_it_has_a_time_of_each_message(tmp_path: Path) -> None:
    said, error = begin(tmp_path, 3).communicate(timeout=120)
    times = ast.literal_eval(said or error)["message_s"]
    assert len(times) == 3 and min(times) > 0


@pytest.mark.parametrize(
    ("end", "said"), [(interrupt, "KeyboardInterrupt"), (kill, "its engine ended")]
)
def test_it_ends_and_leaves_nothing(
    tmp_path: Path, end: Callable[[psutil.Process, psutil.Process], None], said: str
) -> None:
    process = begin(tmp_path, 1_000_000)
    me = psutil.Process(process.pid)
    try:
        while not (engines := [p for p in me.children() if "spawn_main" in " ".join(p.cmdline())]):
            assert process.poll() is None
            time.sleep(0.02)
        family = {me, *me.children()}
        assert not shared_files(family), "it needs none, so none can be left"
        end(me, engines[0])
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0 and said in stderr.splitlines()[-1]
    assert_gone(family)
