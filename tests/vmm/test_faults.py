"""Real segmentation faults and killed processes, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vmm
ROOT = Path(__file__).parents[2]

SETUP = """
import ctypes, os, signal, sys
from vmm import HostDriver, PagePool, Range
driver = HostDriver(65536)
pool, space = PagePool(driver, 1 << 20), Range(driver, 1 << 20)
def touch(offset):
    return ctypes.c_char.from_address(space.address + offset).value
"""

OUTCOMES = {
    "mapped": ("space.back(0, pool.take(2, 'kv')); touch(2 * 65536 - 1)", 0),
    "never mapped": ("touch(0)", -signal.SIGSEGV),
    "behind the mapped": ("space.back(0, pool.take(2, 'kv')); touch(131072)", -signal.SIGSEGV),
    "after unmap": (
        "space.back(0, pool.take(2, 'kv')); touch(65536); space.unback(65536, 65536); touch(65536)",
        -signal.SIGSEGV,
    ),
    "beside the unmapped": (
        "space.back(0, pool.take(2, 'kv')); space.unback(65536, 65536); touch(65535)",
        0,
    ),
    "after close": ("space.back(0, pool.take(1, 'kv')); driver.close(); touch(0)", -signal.SIGSEGV),
}


@pytest.mark.parametrize(("script", "status"), OUTCOMES.values(), ids=OUTCOMES)
def test_touching_memory(script: str, status: int) -> None:
    ended = subprocess.run([sys.executable, "-c", SETUP + script], cwd=ROOT, check=False)
    assert ended.returncode == status


def start(script: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start a process that runs `script`; return it and the words of its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", SETUP + script],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()


def inode(pid: int) -> int | None:
    """Inode of the driver's memory file that a process has open; None if it has none open."""
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        if "memfd:vmm" in str(fd.readlink()):
            return fd.stat().st_ino
    return None


def holders(memory_file: int) -> set[int]:
    """Ids of the processes that have a memory file open or mapped; its memory is free if there are
    none.
    """
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mapped = [m for m in (process / "maps").read_text().splitlines() if "memfd:vmm" in m]
            if inode(int(process.name)) == memory_file or any(
                int(m.split()[4]) == memory_file for m in mapped
            ):
                found.add(int(process.name))
        except OSError:
            continue
    return found


HOLD = "space.back(0, pool.take(16, 'kv')); print('ready', flush=True); sys.stdin.read()"


def test_a_killed_process_gives_its_memory_back_and_others_keep_theirs() -> None:
    (victim, _), (other, _) = start(HOLD), start(HOLD)
    files = {p.pid: inode(p.pid) for p in (victim, other)}
    assert holders(files[victim.pid]) == {victim.pid}
    victim.kill()
    victim.wait()
    assert holders(files[victim.pid]) == set()
    assert holders(files[other.pid]) == {other.pid}
    other.communicate()
    assert other.returncode == 0


FORKED = """
space.back(0, pool.take(16, 'kv'))
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""


def test_a_forked_child_does_not_keep_the_memory() -> None:
    parent, (child,) = start(FORKED)
    memory_file = inode(parent.pid)
    try:
        assert holders(memory_file) == {parent.pid}
        parent.kill()
        parent.wait()
        assert Path(f"/proc/{child}").exists() and holders(memory_file) == set()
    finally:
        os.kill(int(child), signal.SIGKILL)


FORKED_TOUCH = """
space.back(0, pool.take(1, 'kv'))
child = os.fork()
if child == 0:
    driver.close()
    touch(0)
    os._exit(0)
_, status = os.waitpid(child, 0)
touch(0)
driver.check_integrity()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_faults_and_the_parent_lives_on() -> None:
    parent, words = start(FORKED_TOUCH)
    parent.communicate()
    assert (parent.returncode, words) == (0, [str(-signal.SIGSEGV)])
