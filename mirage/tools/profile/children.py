"""Asking a child process of ours: a module that answers one question (`answering`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from mirage.processes.reaper_client import ReaperClient
from mirage.serve.errors import EngineFailed
from mirage.serve.process import last_error

TURN_S = 0.5
"""Seconds from one word of progress to the next."""
ENDING_S = 30.0
"""That a child gets to end by itself when it is asked to."""
CACHE = "VLLM_CACHE_ROOT"


def ask(
    module: str,
    question: Any,
    log: Path,
    environment: Mapping[str, str],
    waiting: Callable[[float], None] = lambda seconds: None,
) -> Any:
    """What `module` answers. `waiting` hears the seconds so far.

    Whatever is raised meanwhile ends the child, and so does the end of this process. Raises
    `EngineFailed` with one line if the child has no answer.
    """
    with log.open("wb") as errors, tempfile.TemporaryFile() as answers:
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=answers,
            stderr=errors,
            env=dict(environment),
            process_group=0,
        )
        with watched(child, Path(tempfile.mkdtemp(prefix="mirage-profile-"))), _ended(child):
            assert child.stdin is not None
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps(question).encode())
                child.stdin.close()
            _wait(child, waiting)
        answers.seek(0)
        answered = answers.read()
    if child.returncode or not answered:
        raise EngineFailed(why(module, child.returncode, log))
    return json.loads(answered)


@contextmanager
def one_cache(folder: Path) -> Iterator[None]:
    """vLLM's cache of all children that begin inside, but where the environment names another.

    Each would else find out anew what the models' classes can, which takes seconds.
    """
    mine = CACHE not in os.environ
    os.environ.setdefault(CACHE, str(folder))
    try:
        yield
    finally:
        if mine:
            del os.environ[CACHE]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, for a child that starts no engine itself."""
    return dict(os.environ) | dict(more or {})


def _wait(child: subprocess.Popen[bytes], waiting: Callable[[float], None]) -> None:
    began = monotonic()
    while True:
        try:
            child.wait(TURN_S)
            return
        except subprocess.TimeoutExpired:
            waiting(monotonic() - began)


@contextmanager
def watched(child: subprocess.Popen[bytes], *folders: Path) -> Iterator[None]:
    """Killed with this process, whatever ends that, and `folders` removed, also by the block."""
    with ReaperClient(*folders) as reaper:
        reaper.began(child.pid)
        try:
            yield
        finally:
            reaper.over(child.pid)


def kill(child: subprocess.Popen[bytes]) -> None:
    """It, and all of its group."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextmanager
def _ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """By whatever is raised inside. Ask first: a child may have a server of its own to end."""
    try:
        yield
    except BaseException:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(ENDING_S)
        kill(child)
        raise


def why(module: str, code: int | None, log: Path) -> str:
    """One line for a child without an answer."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    said = [line for line in lines if line] or ["it said nothing"]
    return f"{module} ended with exit code {code}: {last_error(log) or said[-1][:300]}: see {log}"
