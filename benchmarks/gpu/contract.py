"""The driver's contract, as the tests of tests/vmm have it, on this machine's driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Row, Skipped
from benchmarks.gpu.tied import tied

ROOT = Path(__file__).parents[2]
QUIETLY = ("-q", "-p", "no:cacheprovider")
TESTS = "tests/vmm/test_driver_contract.py"


def kept(bench: Bench) -> Row:
    """Row on the driver's contract, in a process of its own, because stand-in and real driver
    cannot share one. Raises `Skipped` without pytest or hypothesis.
    """
    for needed in ("pytest", "hypothesis"):
        if find_spec(needed) is None:
            raise Skipped(f"{needed} is not installed: pip install pytest hypothesis")
    environment = os.environ | ({} if bench.dry else {"MIRAGE_TEST_GPU": "1"})
    # A run of our own tests would choose by it.
    environment.pop("MIRAGE_TESTS", None)
    done = subprocess.run(
        tied([sys.executable, "-m", "pytest", *QUIETLY, TESTS, "-k", "cuda"]),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=bench.share(),
    )
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-1000:], file=sys.stderr)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "nothing ran"
    passed = re.search(r"(\d+) passed", last)
    return Row(
        "driver contract",
        "the contract of all drivers, test by test",
        last.strip("= "),
        "all pass",
        done.returncode == 0 and passed is not None and "skipped" not in last,
    )
