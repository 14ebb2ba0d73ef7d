"""The end of a process that is not a child of this one: notified, and with its exit status."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from mirage.processes.marks import MarkedProcess, mark_of
from mirage.processes.pidfd import ProcessEnd

pytestmark = pytest.mark.e2e

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.readline()
child.stdin.close()
print(child.wait(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("script", "number", "status"),
    [
        ("input()", signal.SIGSEGV, -signal.SIGSEGV),
        ("input()", signal.SIGKILL, -signal.SIGKILL),
        ("import sys; sys.stdin.read(); sys.exit(7)", None, 7),
    ],
)
def test_a_grandchild_that_its_parent_reaped(script: str, number: int | None, status: int) -> None:
    async def main() -> None:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert parent.stdin is not None and parent.stdout is not None
        pid = int(parent.stdout.readline())
        end = ProcessEnd(pid)
        if number is not None:
            assert end.status() is None
            os.kill(pid, number)
        parent.stdin.write("\n")
        parent.stdin.flush()
        async with asyncio.timeout(60):
            await end.wait()
        reaped = parent.stdout.read(1)  # from here on nobody else can ask for its status
        assert reaped
        found = end.status()
        if found is None:
            pytest.skip("this kernel forgets the status of a process that is reaped")
        assert found == status
        end.close()
        end.close()
        parent.communicate()

    asyncio.run(main())


@pytest.mark.parametrize("marked", [False, True])
def test_a_grandchild_that_nobody_has_reaped(marked: bool) -> None:
    """A process has ended and its parent has not reaped it, because the parent may be busy or dead.
    It counts as dead, with its exit status.
    """

    async def main() -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        end, mark = ProcessEnd(child.pid), mark_of(child.pid)
        assert mark is not None
        process = MarkedProcess.found(mark)
        assert process is not None
        assert end.status() is None and process.poll() is None
        os.kill(child.pid, signal.SIGSEGV)
        if marked:
            assert process.wait(60) == process.poll() == -signal.SIGSEGV
        else:
            async with asyncio.timeout(60):
                await end.wait()
            assert end.status() == -signal.SIGSEGV
            child.wait()
            assert end.status() == -signal.SIGSEGV
        child.communicate()
        end.close()
        process.close()

    asyncio.run(main())


def test_whoever_waits_goes_on_when_it_is_closed() -> None:
    async def main() -> None:
        end = ProcessEnd(os.getpid())
        waiting = asyncio.create_task(end.wait())
        await asyncio.sleep(0)
        end.close()
        async with asyncio.timeout(60):
            await waiting

    asyncio.run(main())
