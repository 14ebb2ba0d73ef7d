"""Questions that are answered in forks of one process, and the probe that passes them on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage.processes import forking
from mirage.serve import relay

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent


@pytest.fixture
def address(tmp_path: Path) -> Iterator[Path]:
    """Of a process of `forks.py`, which ends with the test."""
    found = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(found))
        listener.listen()
        number = listener.fileno()
        words = [sys.executable, str(HERE / "forks.py"), str(number)]
        process = subprocess.Popen(words, pass_fds=[number])
    yield found
    process.kill()
    process.wait()


def test_every_question_is_answered_in_a_new_fork(address: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = forking.ask(address, "count", [1], log, {"TOLD": "yes"})
    second = forking.ask(address, "count", [2], log)
    assert first["pid"] != second["pid"]
    assert (first["made"], second["made"]) == (1, 1)
    assert (first["told"], second["told"]) == ("yes", None)
    assert (first["said"], second["said"]) == ([1], [2])
    assert log.read_text() == "counted\n"  # of the second alone


def test_who_asks_hears_how_long_it_takes(address: Path, tmp_path: Path) -> None:
    heard: list[float] = []
    log = tmp_path / "log"
    said = forking.ask(address, "wait", 0.5, log, waiting=heard.append, every_s=0.05)
    assert said == "waited"
    assert heard and heard == sorted(heard)


@pytest.mark.parametrize(("role", "code"), [("fail", 1), ("die", -9)])
def test_a_fork_that_ends_without_an_answer_is_told_and_is_no_end_of_the_process(
    address: Path, tmp_path: Path, role: str, code: int
) -> None:
    log = tmp_path / "log"
    with pytest.raises(forking.ForkEnded) as ended:
        forking.ask(address, role, "too bad", log)
    assert ended.value.code == code
    assert ("ValueError: too bad" in log.read_text()) == (role == "fail")
    assert forking.ask(address, "count", None, log)["made"] == 1


def test_a_process_that_is_gone_is_an_error_at_once(address: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = forking.ask(address, "count", None, log)
    assert parent["pid"] != os.getpid()
    with pytest.raises(OSError):
        forking.ask(tmp_path / "nowhere", "count", None, log)


def relayed(address: Path, questions: list[dict[str, object]], folder: Path) -> str:
    """What the relay prints; the probe behind it finds no vLLM in `folder`."""
    words = [sys.executable, *relay.probe(address)]
    path = os.pathsep.join([str(folder), str(HERE.parents[1])])
    asked = "".join(json.dumps(question) + "\n" for question in questions)
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        words, input=asked, capture_output=True, text=True, env=environment, timeout=100
    )
    return done.stdout + done.stderr


def test_the_relay_prints_what_the_process_says(address: Path, tmp_path: Path) -> None:
    said = relayed(address, [{"tenant": "a"}, {"tenant": "b"}], tmp_path)
    assert [json.loads(line)["tenant"] for line in said.splitlines()] == ["a", "b"]
    assert "by a fork" in said


def test_the_relay_asks_the_probe_itself_where_nobody_answers(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise ImportError('the probe was started')")
    said = relayed(tmp_path / "nowhere", [{"tenant": "a"}], tmp_path)
    assert "the probe was started" in said
