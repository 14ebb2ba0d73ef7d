"""Rows of the GPU bench that hang, for `test_gpu_watch.py`; each runs in a child process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Row
from benchmarks.gpu.tied import tied
from tests.vmm.libcuda import StandIn

HELD = "MIRAGE_TEST_HELD"
"""Environment variable: the file into which `beside_a_child` writes the process id of its child."""


def good(bench: Bench) -> Row:
    assert bench.end is not None
    return Row("good", "", f"{bench.end - time.monotonic():.0f} s")


def asserts(bench: Bench) -> Row:
    raise AssertionError


def ends(bench: Bench) -> Row:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def in_the_driver(bench: Bench) -> Iterator[Row]:
    """Rows: one that is returned, and then a call of the driver that does not end."""
    with bench.open(bench.page_bytes) as driver:
        address = driver.reserve(driver.page_bytes)
        driver.map(address, driver.create(1))
        yield Row("before it", "", "all right")
        StandIn.load().delay(1e6)
        driver.fill(address, 1, driver.page_bytes)


def with_the_lock(bench: Bench) -> Row:
    """Row that hangs in C while it has Python's global lock, so that no thread of
    its process runs.
    """
    ctypes.PyDLL(None).pause()
    raise AssertionError


def beside_a_child(bench: Bench) -> Row:
    """Row that hangs while a child process of it, its engine, has the GPU's memory."""
    child = subprocess.Popen(tied([sys.executable, "-c", "import time; time.sleep(600)"]))
    Path(os.environ[HELD]).write_text(str(child.pid))
    return with_the_lock(bench)
