"""Asking a child process of ours: a module that answers one question (`answering`)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mirage.processes.asking import AskedChild, Waiting, asked_child, nobody_waits
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.engine_log import last_error
from mirage.serve.errors import EngineFailed
from mirage.wire import Broken

ROLE = "measure"
ENDING_S = 30.0
"""Seconds that a child has to end by itself when it is asked to."""
CACHE = "VLLM_CACHE_ROOT"


def ask(
    module: str,
    question: Any,
    log: Path,
    environment: Mapping[str, str],
    waiting: Waiting = nobody_waits,
) -> Any:
    """Answer of `module` in role `measure`. `waiting` hears the seconds so far.

    Whatever is raised meanwhile ends the child, and so does the end of this process. Raises
    `EngineFailed` with one line if the child has no answer.
    """
    with (
        asked_child(["-m", module], log, environment) as child,
        watched(child.process),
        _ended(child),
    ):
        try:
            answered = child.ask(ROLE, question, waiting)
        except Broken:
            raise EngineFailed(why(module, child.over(), log)) from None
        if code := child.over(waiting):
            raise EngineFailed(why(module, code, log))
    return answered


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


@contextmanager
def watched(child: subprocess.Popen[bytes], *folders: Path) -> Iterator[None]:
    """Killed with this process, whatever ends that, and `folders` removed, also by the block."""
    with ReaperClient(*folders) as reaper:
        reaper.began(child.pid)
        try:
            yield
        finally:
            reaper.over(child.pid)


@contextmanager
def _ended(child: AskedChild) -> Iterator[None]:
    """By whatever is raised inside. Ask first: a child may have a server of its own to end."""
    try:
        yield
    except BaseException:
        child.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(ENDING_S)
        child.kill()
        raise


def why(module: str, code: int | None, log: Path) -> str:
    """One line for a child without an answer."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    said = [line for line in lines if line] or ["it said nothing"]
    return f"{module} ended with exit code {code}: {last_error(log) or said[-1][:300]}: see {log}"
