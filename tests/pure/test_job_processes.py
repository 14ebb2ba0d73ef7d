"""Processes that compute jobs: in order, one by one, and what becomes of their errors."""

from __future__ import annotations

import os
import signal
import time
from itertools import count
from pathlib import Path

import psutil
import pytest

from mirage.config import ConfigError
from mirage.tools.simulate.processes import JobProcesses, Note, RunKilled

pytestmark = pytest.mark.pure
_begun: list[str] = []


def begin(word: str) -> None:
    _begun.append(word)


def square(number: int, note: Note) -> tuple[int, list[str], int]:
    note(number)
    return number * number, _begun, os.getpid()


def refused(number: int, note: Note) -> int:
    if number == 2:
        raise ConfigError("no two")
    return number


def killed(number: int, note: Note) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def held(file: Path, note: Note) -> str:
    """Job that ends only once a second such job has begun too, so both must run at
    the same time.
    """
    file.touch()
    while len(list(file.parent.iterdir())) < 2:
        time.sleep(0.01)
    return file.name


def test_jobs_begin_once_in_each_process_and_come_in_order() -> None:
    noted: list[int] = []
    ended: list[None] = []
    with JobProcesses(2, begin, "word") as pool:
        first = list(pool.outcomes(square, range(9), noted.append, lambda: ended.append(None)))
        second = list(pool.outcomes(square, [5]))
        assert list(pool.outcomes(square, [])) == []
    assert [given for given, _, _ in first] == [n * n for n in range(9)]
    assert all(words == ["word"] for _, words, _ in [*first, *second])
    assert sorted(noted) == list(range(9)) and len(ended) == 9
    processes = {pid for *_, pid in first}
    assert second[0][2] in processes and os.getpid() not in processes
    assert not any(map(psutil.pid_exists, processes))


def test_jobs_may_be_endless_and_are_left_with_the_block() -> None:
    with JobProcesses(2) as pool:
        found = pool.outcomes(square, count())
        assert [next(found)[0] for _ in range(4)] == [0, 1, 4, 9]
        found.close()
    assert not [c for c in psutil.Process().children() if "spawn_main" in " ".join(c.cmdline())]


def test_two_are_at_work_at_one_time(tmp_path: Path) -> None:
    with JobProcesses(2) as pool:
        assert list(pool.outcomes(held, [tmp_path / "b", tmp_path / "a"])) == ["b", "a"]


def test_an_error_is_raised_as_it_is_and_says_where_it_was() -> None:
    with pytest.raises(ConfigError, match="no two") as caught, JobProcesses(1) as pool:
        list(pool.outcomes(refused, [1, 2, 3]))
    assert str(caught.value) == "no two"
    assert any("in refused" in note for note in caught.value.__notes__)
    left = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert not [words for words in left if "spawn_main" in words]


def test_a_process_that_was_killed_is_told() -> None:
    with pytest.raises(RunKilled, match="--processes 1"), JobProcesses(1) as pool:
        list(pool.outcomes(killed, [1]))
