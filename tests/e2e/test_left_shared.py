"""A session whose tests leave a file in /dev/shm fails, and names the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from left_shared import FOLDER, shared_files, unmapped

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
PLUGIN = """
import left_shared
from left_shared import pytest_configure

left_shared.PATIENCE_S = 0.5
"""
TESTS = """
import time
from pathlib import Path

def test_before():
    time.sleep(0.1)

def test_leaves():
    time.sleep(0.1)
    Path({path!r}).touch()
    Path({others!r}).touch()
"""


SEMAPHORE = """
import multiprocessing, sys
semaphore = multiprocessing.get_context("spawn").Semaphore()
print("made", flush=True)
"""


@pytest.mark.parametrize("processes", ["0", "1"])
def test_the_session_fails_and_names_file_and_test(tmp_path: Path, processes: str) -> None:
    path = FOLDER / f"left-{os.getpid()}-{processes}"
    others = FOLDER / f"sem.mp-another-{os.getpid()}-{processes}"
    (tmp_path / "test_it.py").write_text(TESTS.format(path=str(path), others=str(others)))
    (tmp_path / "conftest.py").write_text(PLUGIN)
    search = f"{HERE.parent.parent}:{HERE}:{HERE.parent / 'pure'}"
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "--dist", "loadfile"]
    try:
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": search},
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        path.unlink()
        others.unlink()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert f"{path}, made during test_it.py::test_leaves\n" in done.stdout
    assert others.name not in done.stdout, "another session made it"


def test_what_a_living_process_has_is_no_remainder() -> None:
    """A living process has mapped a semaphore, which it made under another name. This file does not
    count as left; an unmapped file does.
    """
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", SEMAPHORE + "sys.stdin.readline()"]
    kept = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    assert kept.stdout is not None and kept.stdout.readline() == "made\n"
    (path,) = shared_files([psutil.Process(kept.pid)])
    left = FOLDER / f"unmapped-{os.getpid()}"
    try:
        left.touch()
        assert unmapped({path, left}) == {left}
    finally:
        left.unlink()
        kept.communicate("\n", timeout=60)
    assert not path.exists()
