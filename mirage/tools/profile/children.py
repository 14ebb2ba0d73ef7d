"""Questions to child processes: each runs a module that answers one question (`answering`)."""

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
from mirage.serve.engines.errors import EngineFailed
from mirage.serve.logs.engine_log import last_error
from mirage.wire import Broken

ROLE = "measure"
ENDING_S = 30.0
"""Seconds in which a child must end by itself after it was asked to; then it is killed."""
CACHE = "VLLM_CACHE_ROOT"


def ask(
    module: str,
    question: Any,
    log: Path,
    environment: Mapping[str, str],
    waiting: Waiting = nobody_waits,
) -> Any:
    """Answer of `module`, run as a child process, to `question`. `waiting` is called now and then
    with the seconds so far.

    Any error here ends the child, and so does the end of this process. Raises `EngineFailed` with
    one line if the child gives no answer, or exits with another code than 0.
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
    """Context that sets the folder of vLLM's cache for all children started inside, unless the
    environment names one.

    Otherwise each child would inspect the models' classes again, which takes seconds.
    """
    mine = CACHE not in os.environ
    os.environ.setdefault(CACHE, str(folder))
    try:
        yield
    finally:
        if mine:
            del os.environ[CACHE]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables with `more`, for a child that starts no engine itself."""
    return dict(os.environ) | dict(more or {})


@contextmanager
def watched(child: subprocess.Popen[bytes], *folders: Path) -> Iterator[None]:
    """Context in which a reaper kills the child if this process ends. The reaper removes `folders`
    at the end of the context, or when this process ends.
    """
    with ReaperClient(*folders) as reaper:
        reaper.began(child.pid)
        try:
            yield
        finally:
            reaper.over(child.pid)


@contextmanager
def _ended(child: AskedChild) -> Iterator[None]:
    """Context that ends the child on any error inside. The child is asked first (SIGINT), since it
    may have to end a server of its own, and is killed after `ENDING_S`.
    """
    try:
        yield
    except BaseException:
        child.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(ENDING_S)
        child.kill()
        raise


def why(module: str, code: int | None, log: Path) -> str:
    """One line with the reason why a child gave no answer."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    said = [line for line in lines if line] or ["it said nothing"]
    return f"{module} ended with exit code {code}: {last_error(log) or said[-1][:300]}: see {log}"
