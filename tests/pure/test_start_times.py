"""Parts of an engine's start add up to the time since its process began."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.pure

SLEPT_S = 0.3
SHOWN_S = 0.05
"""Half of the last digit of a printed time, in seconds."""
TICK_S = 0.01
"""Unit of the kernel's times of starts, in seconds."""
PROGRAM = f"""
import time
from mirage.engine.start_times import StartTimes

times = StartTimes()
times.lap("process")
time.sleep({SLEPT_S})
times.lap("sleep")
print(times)
"""


def test_no_part_is_longer_than_the_process_has_lived() -> None:
    before = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    lived_s = time.monotonic() - before
    assert done.returncode == 0, done.stderr
    parts = {part: float(s) for part, s in re.findall(r"([a-z ]+) ([\d.]+) s", done.stdout)}
    assert list(parts) == [" server before its core", " process", " sleep"]
    assert parts[" sleep"] >= SLEPT_S - SHOWN_S
    assert parts[" process"] + parts[" sleep"] <= lived_s + TICK_S + 2 * SHOWN_S
