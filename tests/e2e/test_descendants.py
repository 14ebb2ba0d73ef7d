"""Processor time of a process's descendants, such as compilers."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from mirage.engine.descendants import cpu_seconds

pytestmark = pytest.mark.e2e

COMPUTES = "while True: pass"
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES!r}])"


@pytest.mark.parametrize("script", [COMPUTES, STARTS])
def test_children_and_their_children_count(script: str) -> None:
    before = cpu_seconds(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while cpu_seconds(os.getpid()) < before + 1.0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(child.pid, 9)
        child.wait()


def test_one_that_is_gone_has_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert cpu_seconds(child.pid) == 0.0
