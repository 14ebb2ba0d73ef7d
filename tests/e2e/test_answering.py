"""Questions to a process that answers itself or in forks, and the answers of the probe."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from supervised import assert_gone, write_config

from mirage.config import ConfigError, load
from mirage.processes import asking
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.serve.launch import vllm_facts
from mirage.wire import Broken

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
FORKS = str(HERE / "forks.py")
MANY = 200_000
"""Count of numbers in an answer that is longer than other messages may be."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[Path]:
    """Address of a process that runs `forks.py`, until the test ends."""
    found = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(found))
        listener.listen()
        number = listener.fileno()
        process = subprocess.Popen([sys.executable, FORKS, str(number)], pass_fds=[number])
    yield found
    process.kill()
    process.wait()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


# -- in forks ------------------------------------------------------------------------------


def test_every_question_is_answered_in_a_new_fork(address: Path, log: Path) -> None:
    first = asking.ask(address, "count", [1], log, {"TOLD": "yes"})
    second = asking.ask(address, "count", [2], log)
    assert first["pid"] != second["pid"]
    assert not psutil.pid_exists(first["pid"]) and not psutil.pid_exists(second["pid"])
    assert (first["made"], second["made"]) == (1, 1)
    assert (first["told"], second["told"]) == ("yes", None)
    assert (first["said"], second["said"]) == ([1], [2])
    assert log.read_text() == "counted\n"  # of the second alone


def test_who_asks_hears_how_long_it_takes(address: Path, log: Path) -> None:
    heard: list[float] = []
    said = asking.ask(address, "wait", 0.5, log, waiting=heard.append, every_s=0.05)
    assert said == "waited"
    assert heard and heard == sorted(heard)


@pytest.mark.parametrize(("role", "code"), [("fail", 1), ("die", -9)])
def test_a_fork_that_ends_without_an_answer_is_told_and_is_no_end_of_the_process(
    address: Path, log: Path, role: str, code: int
) -> None:
    with pytest.raises(asking.ForkEnded) as ended:
        asking.ask(address, role, "too bad", log)
    assert ended.value.code == code
    assert ("ValueError: too bad" in log.read_text()) == (role == "fail")
    assert asking.ask(address, "count", None, log)["made"] == 1


@pytest.mark.parametrize("said", [b"", b"\0\0\0\1\0x", b"{}" * 9, b"\0\0"])
def test_one_who_talks_otherwise_or_leaves_harms_nobody(
    address: Path, log: Path, said: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(str(address))
        other.sendall(said)
    assert asking.ask(address, "count", None, log)["made"] == 1


def test_a_process_that_is_gone_is_an_error_at_once(address: Path, log: Path) -> None:
    parent = asking.ask(address, "count", None, log)
    assert parent["pid"] != os.getpid()
    with pytest.raises(OSError):
        asking.ask(address.with_name("nowhere"), "count", None, log)


# -- a child that answers itself -------------------------------------------------------------


def test_a_child_answers_all_itself_and_what_it_prints_is_logged(log: Path) -> None:
    with asking.asked_child([FORKS, "itself"], log, os.environ) as child:
        first, second = (child.ask("count", number) for number in (1, 2))
        assert first["pid"] == second["pid"] == child.process.pid
        assert (first["made"], second["made"]) == (1, 2)
        assert child.over() == 0
    assert log.read_text() == "counted\n" * 2


def test_an_answer_may_be_long_and_is_as_json_would_have_it(log: Path) -> None:
    with asking.asked_child([FORKS, "itself"], log, os.environ) as child:
        assert child.ask("numbers", MANY) == {"1": [float(n) for n in range(MANY)]}


@pytest.mark.parametrize(("role", "code"), [("fail", 1), ("die", -9)])
def test_a_child_that_ends_without_an_answer_is_noticed(log: Path, role: str, code: int) -> None:
    with asking.asked_child([FORKS, "itself"], log, os.environ) as child:
        with pytest.raises(Broken):
            child.ask(role, "too bad")
        assert child.over() == code
    assert ("ValueError: too bad" in log.read_text()) == (role == "fail")


def test_one_that_leaves_children_behind_is_noticed_too(log: Path) -> None:
    with (
        asking.asked_child([FORKS, "itself"], log, os.environ) as child,
        pytest.raises(Broken, match="it has ended"),
    ):
        child.ask("leave", "600")
    left = int(log.read_text())
    if psutil.pid_exists(left):
        assert_gone({psutil.Process(left)})  # went with the block


def test_whatever_is_raised_ends_it(log: Path) -> None:
    def tired(seconds: float) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        asking.asked_child([FORKS, "itself"], log, os.environ) as child,
    ):
        child.ask("wait", 600, tired)
    assert child.process.returncode == -9


def test_a_signal_while_it_starts_ends_it(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with (
        terminate_like_interrupt(),
        pytest.raises(KeyboardInterrupt),
        asking.asked_child([FORKS, "itself"], log, os.environ),
    ):
        raise AssertionError("it was interrupted before")
    assert [process.returncode for process in started] == [-9]


# -- the probe -------------------------------------------------------------------------------


def test_a_process_that_is_there_is_asked_about_the_models(address: Path, tmp_path: Path) -> None:
    facts, refused = vllm_facts.ask(load(write_config(tmp_path, "a", "b")), address)
    assert (facts, refused) == ({}, {"a": "by a fork", "b": "by a fork"})


def without_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> Any:
    """A configuration, in an environment in which importing vLLM fails with the message `words`."""
    (tmp_path / "vllm.py").write_text(f"raise ImportError({words!r})")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(HERE.parents[1])]))
    return load(write_config(tmp_path, "a"))


def test_the_probe_itself_is_started_where_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = without_vllm(tmp_path, monkeypatch, "the probe was started")
    with pytest.raises(ConfigError, match=r"cannot be asked.*the probe was started"):
        vllm_facts.ask(config, tmp_path / "nowhere")


def test_one_that_answers_too_late_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_facts, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(vllm_facts, "MORE_S", 0.1)
    monkeypatch.setenv("FAKE_PROBE_S", "600")
    with pytest.raises(ConfigError, match=r"did not answer about the models in 0\.2 s"):
        vllm_facts.ask(load(write_config(tmp_path, "a")), (str(HERE / "fake_probe.py"),))
