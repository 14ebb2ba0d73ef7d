"""A program run as a fork of a process that has imported vLLM behaves as if it was started anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from warm import Begun

pytestmark = pytest.mark.e2e

SAYS = """
import os, sys
print(os.getcwd(), os.environ["TOLD"], sys.argv, "vllm" in sys.modules, file=sys.stderr)
print(os.getsid(0) == os.getpid(), file=sys.stderr)
sys.exit(3)
"""
WAITS = "import sys; print('waits', file=sys.stderr, flush=True); import signal; signal.pause()"

SHARES = """
import signal, sys
from multiprocessing.shared_memory import SharedMemory
shared = SharedMemory(create=True, size=8)
print(shared.name, file=sys.stderr, flush=True)
signal.pause()
"""


def begin(folder: Path, program: str, *words: str) -> Begun:
    return Begun(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TOLD": "so"},
        cwd=folder,
    )


@pytest.mark.slow
def test_what_this_process_has_imported_it_has_not(tmp_path: Path) -> None:
    """The test's process has imported vLLM and pytest. The program runs as a fork of another
    process, which has imported vLLM only, so it has no pytest. This test must run first, before
    other tests import more modules.
    """
    import vllm  # noqa: F401

    process = begin(tmp_path, "import sys; sys.exit('pytest' in sys.modules)")
    process.communicate(timeout=120)
    assert process.returncode == 0


def test_it_is_told_what_a_program_is_told_and_ends_like_one(tmp_path: Path) -> None:
    process = begin(tmp_path, SAYS, "a", "b")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 3
    assert said.splitlines() == [f"{tmp_path} so ['-c', 'a', 'b'] True", "True"]


def test_it_is_a_child_that_can_be_killed_and_leaves_nothing(tmp_path: Path) -> None:
    process = begin(tmp_path, WAITS, "here")
    assert process.stderr is not None and process.stderr.readline() == "waits\n"
    child = psutil.Process(process.pid)
    assert child.ppid() == os.getpid() and child.cmdline()[-1] == "here"
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    assert process.stderr.read() == ""
    assert not child.is_running()


def test_when_it_is_killed_its_shared_memory_goes_as_well(tmp_path: Path) -> None:
    """The fork is killed. Its own resource tracker, as a started program would have one, removes
    its shared memory.
    """
    process = begin(tmp_path, SHARES)
    assert process.stderr is not None
    shared = Path("/dev/shm") / process.stderr.readline().strip()
    assert shared.is_file()
    (tracker,) = psutil.Process(process.pid).children()
    process.kill()
    tracker.wait(60)
    assert not shared.exists()
    process.communicate(timeout=60)
