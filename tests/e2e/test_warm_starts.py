"""Engines of a server are forks of one process that has imported vLLM; they work without it too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from supervised import assert_gone, serving, write_demo
from warm import AT_IMPORT, ROOT, adopting

from mirage.processes.child import AdoptedChild
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.engines import warm
from mirage.serve.engines.warm import WarmStarts
from mirage.serve.launch.launcher import ADAPTING
from mirage.wire import Broken

pytestmark = pytest.mark.e2e

SAYS = "import os, sys; print('vllm' in sys.modules, os.environ['TOLD'], flush=True); sys.exit(5)"
LONG_S = 180


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return AT_IMPORT | dict(os.environ) | {"PYTHONPATH": str(ROOT), "TOLD": "so"}


@pytest.fixture
def starts(tmp_path: Path, environment: dict[str, str]) -> Iterator[WarmStarts]:
    with adopting(), ReaperClient() as reaper:
        made = WarmStarts(tmp_path / "warm.sock", environment, tmp_path / "log", reaper)
        yield made
        made.close()
        assert not psutil.pid_exists(made.pid) and not made.address.exists()


def said(starts: WarmStarts, environment: dict[str, str], folder: Path) -> tuple[bool, str]:
    """True if the program ran as a fork, and its output. Its exit code must be 5."""
    log = folder / "said"
    log.unlink(missing_ok=True)
    child = starts.start([sys.executable, "-c", SAYS], environment, log)
    child.begin()
    assert child.wait() == 5
    return isinstance(child, AdoptedChild), log.read_text()


def until_ready(starts: WarmStarts) -> None:
    deadline = time.monotonic() + LONG_S
    while not starts.is_ready():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow
def test_a_fork_of_it_is_what_the_program_is(
    starts: WarmStarts, environment: dict[str, str], tmp_path: Path
) -> None:
    """A program runs as a fork once the fork server has imported vLLM. Before that, and for another
    environment, it is started as a new program.
    """
    assert said(starts, environment, tmp_path) == (False, "False so\n")
    until_ready(starts)
    assert said(starts, environment, tmp_path) == (True, "True so\n")
    assert said(starts, environment | ADAPTING, tmp_path) == (True, "True so\n")
    other = environment | {"TOLD": "otherwise"}
    assert said(starts, other, tmp_path) == (False, "False otherwise\n")


@pytest.mark.slow
def test_one_that_is_stopped_or_has_ended_costs_a_cold_start(
    starts: WarmStarts,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm, "FORK_S", 0.5)
    until_ready(starts)
    os.kill(starts.pid, signal.SIGSTOP)
    assert not said(starts, environment, tmp_path)[0]
    psutil.Process(starts.pid).wait(60)
    assert not starts.is_ready()
    assert not said(starts, environment, tmp_path)[0]


def test_one_that_cannot_be_started_again_is_tried_until_it_can(
    starts: WarmStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends, and no file can be opened for the next one the first two times; the third
    time it starts."""
    tried: list[int] = []
    begin = starts._begin

    def begins() -> None:
        tried.append(starts.pid)
        if len(tried) < 3:
            raise OSError("too many open files")
        begin()

    async def again() -> None:
        keeping = asyncio.create_task(starts.keep(60.0, lambda line: None))
        while starts.pid == first:
            await asyncio.sleep(0.05)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    for name in ("PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(warm, name, 0.05)
    monkeypatch.setattr(starts, "_begin", begins)
    first = starts.pid
    os.kill(first, signal.SIGKILL)
    asyncio.run(asyncio.wait_for(again(), LONG_S))
    assert tried == [first] * 3


def test_one_that_hears_nothing_at_its_start_is_ended(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    others = {child.pid for child in psutil.Process().children()}

    def broken(channel: object, message: object) -> None:
        begun.extend(
            child.pid
            for child in psutil.Process().children()
            if child.pid not in others and warm.PROGRAM[-1] in child.cmdline()
        )
        raise Broken("it is gone")

    monkeypatch.setattr(warm.Channel, "say", broken)
    with ReaperClient() as reaper, pytest.raises(Broken):
        WarmStarts(tmp_path / "warm.sock", environment, tmp_path / "log", reaper)
    assert len(begun) == 1 and not psutil.pid_exists(begun[0])


@pytest.mark.slow
def test_a_fork_that_comes_too_late_is_none(
    starts: WarmStarts,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fork server makes a fork too late, when the process that asked has started the program
    itself. The fork ends at once.
    """
    monkeypatch.setattr(warm, "FORK_S", -1.0)
    monkeypatch.setattr(warm, "MARGIN_S", 60.0)
    until_ready(starts)
    assert not said(starts, environment, tmp_path)[0]
    assert starts.is_ready()
    assert "TimeoutError: too late to start" in (tmp_path / "log").read_text()


def test_it_ends_with_who_started_it(tmp_path: Path, environment: dict[str, str]) -> None:
    program = f"""
import signal, time
from pathlib import Path
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.engines.warm import WarmStarts
import os
folder = Path({str(tmp_path)!r})
starts = WarmStarts(folder / "warm.sock", dict(os.environ), folder / "log", ReaperClient())
print(starts.pid, flush=True)
signal.pause()
"""
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        forking = psutil.Process(int(process.stdout.readline()))
        process.kill()
    forking.wait(60)


@pytest.mark.slow
def test_it_ends_without_a_reaper_too(tmp_path: Path, environment: dict[str, str]) -> None:
    """The fork server's parent ends while the server still imports, as a killed supervisor does.
    The fork server ends by itself.
    """
    program = f"""
import os, socket, subprocess
from mirage.serve.engines.warm import PROGRAM
listener = socket.socket(socket.AF_UNIX)
listener.bind({str(tmp_path / "warm.sock")!r})
listener.listen()
words = [*PROGRAM, str(os.getpid()), str(listener.fileno())]
begun = subprocess.Popen(words, pass_fds=[listener.fileno()], start_new_session=True)
print(begun.pid, flush=True)
os._exit(0)
"""
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        forking = psutil.Process(int(process.stdout.readline()))
    try:
        forking.wait(120)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            forking.kill()


DEFAULTS = "from mirage.cli import main; import sys; main(sys.argv[1:])"


@pytest.mark.slow
def test_engines_of_a_server_start_warm_and_again_after_a_kill(tmp_path: Path) -> None:
    """`mirage serve` starts its engine as a fork, and again after a kill. When the supervisor is
    killed, no process is left.
    """
    config = write_demo(tmp_path, ["llama"], "60MiB")
    asked = {"model": "llama", "prompt": "a b c", "max_tokens": 8, "temperature": 0}
    with serving(config, fake=False, program=DEFAULTS) as served:
        served.drain()
        status, before = served.request("POST", "/v1/completions", asked)
        assert status == 200
        family = served.family()
        assert any("mirage.engine.forkserver" in p.cmdline() for p in family)
        core = served.engine_core("llama")
        assert os.getpgid(core.pid) == core.ppid()
        core.kill()
        served.until("it is noticed", lambda: served.engine_state("llama") != "ready")
        served.until("it serves again", lambda: served.engine_state("llama") == "ready")
        status, after = served.request("POST", "/v1/completions", asked)
        assert status == 200 and after["choices"] == before["choices"]
        starts = [line for line in served.log if "llama: ready in" in line]
        assert len(starts) == 2 and all("(warm start: process" in line for line in starts)
        folder = served.run_folder()
        assert folder is not None
        log = (folder / "logs" / "llama.log").read_text()
        parts = re.findall(r"mirage: start: server before its core [^\n]*, (layers[^\d]*) \d", log)
        assert parts == ["layers placed and proven", "layers placed"]
        family |= served.family()
        served.process.kill()
        assert_gone(family)
