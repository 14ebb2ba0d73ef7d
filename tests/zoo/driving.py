"""Runs families in child processes: one for as many as it survives, with a deadline each."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

SCRIPT = Path(__file__).parents[1] / "engine" / "zoo_run.py"
sys.path.insert(0, str(SCRIPT.parent))

import nursery  # noqa: E402  # beside the script

POLL_S = 0.2

Facts = dict[str, Any]


def drive(
    mode: str, families: Sequence[str], models: Path, *, deadline_s: float = 300.0
) -> Iterator[tuple[str, Facts]]:
    """Each family's facts in `mode`, as they come.

    A failure ends its process, and the next family begins in a fresh one. Who failed in a process
    that others had used before is tried once more, first in a fresh one. `deadline_s` is for one
    family, the start of a process included.
    """
    todo = list(families)
    while todo:
        for place, facts in enumerate(_one_process(mode, todo, models, deadline_s)):
            assert facts.pop("family") == todo[0]
            if "failed" in facts and place > 0:
                break
            yield todo.pop(0), facts


def drive_all(
    mode: str, families: Sequence[str], models: Path, jobs: int
) -> Iterator[tuple[str, Facts]]:
    """Facts of `drive` in `jobs` processes at a time, each with a part of the families."""
    parts = [part for job in range(jobs) if (part := families[job::jobs])]
    said: Queue[tuple[str, Facts] | None] = Queue()

    def run(part: Sequence[str]) -> None:
        try:
            for result in drive(mode, part, models):
                said.put(result)
        finally:
            said.put(None)

    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        running = [pool.submit(run, part) for part in parts]
        for _ in running:
            yield from iter(said.get, None)
    for each in running:
        each.result()  # raises what was raised there


def in_modes(
    modes: Sequence[str], families: Sequence[str], models: Path, jobs: int = 1
) -> dict[str, dict[str, Facts]]:
    """Facts of all `families` by mode and family, one mode after the other."""
    return {mode: dict(drive_all(mode, families, models, jobs)) for mode in modes}


def _one_process(
    mode: str, families: Sequence[str], models: Path, deadline_s: float
) -> Iterator[Facts]:
    """Facts that one process prints until its end: those of at least one family, or a failure."""
    families = list(families)
    with tempfile.TemporaryDirectory(prefix="mirage-zoo-") as folder:
        out, log = Path(folder) / "facts", Path(folder) / "log"
        out.touch()
        words = [str(models), str(out), mode, *families]
        child = nursery.begin(SCRIPT, words, out=log, err=log, environment={"TMPDIR": folder})
        seen, failed, late = 0, False, False
        try:
            since = time.monotonic()
            while child.exitcode is None and not late:
                time.sleep(POLL_S)
                for facts in _read(out, seen):
                    seen, since, failed = seen + 1, time.monotonic(), "failed" in facts
                    yield facts
                late = time.monotonic() - since > deadline_s
        finally:
            child.kill()
            child.join()
        for facts in _read(out, seen):
            seen, failed = seen + 1, "failed" in facts
            yield facts
        if seen < len(families) and not failed:
            why = f"no end within {deadline_s:.0f} s" if late else _end(child.exitcode, log)
            yield {"family": families[seen], "failed": why}


def _read(out: Path, seen: int) -> list[Facts]:
    """Whole lines after the first `seen` ones."""
    lines = out.read_text().splitlines(keepends=True)[seen:]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _end(status: int, log: Path) -> str:
    """Text on how a process ended that left no facts."""
    if status < 0:
        return f"the process ended by signal {-status}"
    words = log.read_text().strip().splitlines()
    return f"the process ended with status {status}: {words[-1] if words else 'it said nothing'}"
