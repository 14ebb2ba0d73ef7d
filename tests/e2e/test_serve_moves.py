"""Models move between two devices while requests run: none fails, and `mirage why` tells of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from operated import mirage
from prometheus_client.parser import text_string_to_metric_families
from supervised import assert_gone
from test_serve_devices import LEFT, RIGHT, Machine, config_of, served, tenant

import configs

pytestmark = pytest.mark.e2e

OTHER = {LEFT: RIGHT, RIGHT: LEFT}
RULES = {
    "decide_s": 0.5,
    "window_s": 4.0,
    "windows": 1,
    "ttft_s": 30.0,
    "tpot_s": 0.08,
    "judge_s": 60.0,
    "rest_s": 1.0,
    "away_s": 0.3,
    "drain_s": 60.0,
    "start_s": 60.0,
}

CLIENTS = 5
"""Clients of each model. With 20 tokens a request, they ask a model for some 450 tokens/s. By the
profile, a device serves 475 tokens/s of one busy model within `tpot_s`, and at most 500 of two.
"""


def movable(folder: Path, **rules: Any) -> Path:
    """Configuration of two devices: `a` is bound to left, `c` to right, and `b` is where the
    placement puts it.

    By the profile, a step of one request takes 6 ms, to read the 192 KiB of a model and the
    request's KV. Steps of models that are busy together on a device take as long as all of them.
    """
    hardware = yaml.safe_load((configs.HERE / "hardware" / "h100.yaml").read_text())
    hardware["step_overhead_ms"]["value"] = 0.1
    hardware["bandwidth_gb_s"]["value"] = 0.05
    (folder / "slow.yaml").write_text(yaml.safe_dump(hardware))
    devices = [{"name": n, "memory": "4MiB", "profile": "slow.yaml"} for n in (LEFT, RIGHT)]
    tenants = [tenant("a", device=LEFT), tenant("b"), tenant("c", device=RIGHT)]
    return config_of(folder, devices=devices, tenants=tenants, placement=RULES | rules)


def devices_of(machine: Machine, model: str) -> list[str]:
    cards = machine.server.request("GET", "/v1/models")[1]["data"]
    return [name for card in cards if card["id"] == model for name in card["devices"]]


def ready_on(machine: Machine, model: str) -> set[str]:
    states = machine.health()["tenants"].get(model, {})
    return {device for device, state in states.items() if state == "ready"}


@contextmanager
def loaded(machine: Machine, tokens: int, *models: str) -> Iterator[list[tuple[str, int, Any]]]:
    """Context in which `CLIENTS` clients of each model request `tokens` tokens again and again;
    gives the list of (model, status, answer).
    """
    answers: list[tuple[str, int, Any]] = []
    over = threading.Event()

    def ask(model: str) -> None:
        body = {"model": model, "prompt": "tokens", "max_tokens": tokens}
        while not over.is_set():
            answers.append((model, *machine.server.request("POST", "/v1/completions", body)))
            time.sleep(0.2)

    threads = [
        threading.Thread(target=ask, args=(model,)) for model in models for _ in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        over.set()
        for thread in threads:
            thread.join()


def moves(machine: Machine) -> dict[str, float]:
    text = machine.server.request("GET", "/metrics")[1].decode()
    return {
        one.labels["result"]: one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == "mirage_placement_moves_total"
    }


def test_a_model_moves_away_from_a_busy_one_and_no_request_is_lost(
    tmp_path: Path, short: Path
) -> None:
    with served(movable(tmp_path), short, lease_s=0) as machine:
        (home,) = devices_of(machine, "b")
        there, beside = OTHER[home], "a" if home == LEFT else "c"
        stream = machine.begins("b", 40)
        with loaded(machine, 20, "b", beside) as answers:
            machine.server.until("it has moved", lambda: devices_of(machine, "b") == [there])
            asked = len(answers)
            machine.server.until("more were asked", lambda: len(answers) > asked + 20)
        wrong = [answer for answer in answers if answer[1] != 200]
        assert not wrong, wrong[:3]
        assert stream.getresponse().read().count(b"data: {}") == 40, "it ends where it began"
        machine.server.until("its move is over", lambda: moves(machine)["done"] >= 1)
        assert moves(machine)["failed"] == 0
        told = machine.operator.mirage("why", "b").stdout
        assert f"  b: {home} -> {there}" in told and "(simulated)" in told, told
        for number, verb in enumerate(("start", "route"), 1):
            assert f"  {number}. {verb} b on {there}, done" in told, told
        for number, verb in enumerate(("drain", "stop"), 3):
            assert f"  {number}. {verb} b on {home}, done" in told, told
        lines = machine.operator.mirage("ps").stdout.splitlines()
        assert [line.split()[-1] for line in lines if line.startswith("b ")] == [there]
        family = machine.family()
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert_gone(family)
    assert not list(short.iterdir())


@pytest.mark.slow
def test_a_replica_opens_for_a_hot_model_and_closes_when_it_is_idle(
    tmp_path: Path, short: Path
) -> None:
    with served(movable(tmp_path, tpot_s=0.04), short, lease_s=0) as machine:
        with loaded(machine, 100, "b") as answers:
            machine.server.until("b is on both", lambda: ready_on(machine, "b") == {LEFT, RIGHT})
            servers = lambda: {told["server"] for _, _, told in answers[-40:]}  # noqa: E731
            machine.server.until("both answer", lambda: len(servers()) == 2)
        assert {status for _, status, _ in answers} == {200}
        machine.server.until("one is closed", lambda: len(devices_of(machine, "b")) == 1)
        assert machine.pids("b")
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


@pytest.mark.slow
def test_a_move_whose_device_dies_leaves_all_as_it_was(tmp_path: Path, short: Path) -> None:
    """While `b` moves, its new engine waits for a file, and the server of the new device is killed.
    The move fails, `b` stays at home, and no request fails.
    """
    gate = tmp_path / "gate"
    gate.touch()
    config = movable(tmp_path, rest_s=300.0)
    environment = {"FAKE_ENGINE": f"obeys:b:{gate}"}
    with served(config, short, lease_s=0, **environment) as machine:
        (home,) = devices_of(machine, "b")
        there, beside = OTHER[home], "a" if home == LEFT else "c"
        gate.unlink()
        with loaded(machine, 20, "b", beside) as answers:
            machine.server.until("it comes", lambda: set(devices_of(machine, "b")) == {home, there})
            before = machine.device(there)
            before.kill()
            machine.server.until("another serves", lambda: machine.has_another(there, before.pid))
            machine.server.until("the move is over", lambda: moves(machine)["failed"] == 1)
        assert {status for _, status, _ in answers} == {200}
        assert devices_of(machine, "b") == [home]
        told = machine.operator.mirage("why").stdout
        assert f"1. start b on {there}, failed" in told and "way back: " in told, told
        assert f"2. route b on {there}, left out" in told, told
        gate.touch()
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


@pytest.mark.slow
def test_models_of_a_frozen_device_come_elsewhere_and_go_back(tmp_path: Path, short: Path) -> None:
    with served(movable(tmp_path), short, lease_s=0) as machine:
        (home,) = devices_of(machine, "b")
        with loaded(machine, 1, "b") as answers:
            before = machine.device(home)
            before.send_signal(signal.SIGSTOP)
            machine.server.until("it stands in", lambda: OTHER[home] in ready_on(machine, "b"))
            stood_in = len(answers) + CLIENTS  # each client may have one request at work
            machine.server.until("another serves", lambda: machine.has_another(home, before.pid))
            machine.server.until("b is back", lambda: devices_of(machine, "b") == [home])
        wrong = [(n, one) for n, (_, status, one) in enumerate(answers) if status != 200]
        away = [n for n, one in wrong if one["error"]["code"] == "device_away"]
        assert all(n < stood_in for n in away), "the stand-in serves until the device is reached"
        assert len(wrong) - len(away) <= CLIENTS, (
            "each client had one request at work when engines ended"
        )
        told = machine.operator.mirage("why", "b").stdout
        assert f"{home} away: " in told and f"{home} serves b again" in told, told
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "the simulation ended with exit status -9"),
        pytest.param(
            signal.SIGINT, "the simulation ended with exit status", marks=pytest.mark.slow
        ),
        pytest.param(signal.SIGSTOP, "the simulation was not over in 1 s", marks=pytest.mark.slow),
    ],
)
def test_a_judge_that_fails_is_replaced_by_arithmetic_and_disturbs_nobody(
    tmp_path: Path, short: Path, number: int, words: str
) -> None:
    """The judge's process is killed, raises an error, or hangs. That decision is made by arithmetic
    and the next one by simulation again; requests are served meanwhile.
    """
    rules = {"judge_s": 1.0} if number == signal.SIGSTOP else {}
    with served(movable(tmp_path, **rules), short, lease_s=0) as machine:
        hit: list[int] = []
        over = threading.Event()

        def hits() -> None:
            while not over.wait(0.01):
                for one in judges(machine):
                    with suppress(psutil.Error):
                        if one.pid not in hit:
                            one.send_signal(number)
                            hit.append(one.pid)

        thread = threading.Thread(target=hits)
        with loaded(machine, 5, "a", "b", "c") as answers:
            thread.start()
            try:
                said = f"(by arithmetic: {words}"
                machine.server.until("it says so", lambda: any(said in w for w in whys(machine)))
            finally:
                over.set()
                thread.join()
            assert hit
        with loaded(machine, 40, "b") as more:  # other load, which is judged anew
            simulated = lambda: any("(simulated)" in words for words in whys(machine))  # noqa: E731
            machine.server.until("another one simulates", simulated)
        answers += more
        assert {status for _, status, _ in answers} == {200}
        assert machine.server.end(signal.SIGTERM)[0] == 0
        assert not [pid for pid in hit if psutil.pid_exists(pid)]
        log = "".join(machine.server.log)
    assert ("placement: simulation failed" in log) == (number != signal.SIGSTOP)
    assert "no placement is decided" not in log
    assert not list(short.iterdir())


def whys(machine: Machine) -> list[str]:
    """Reason of the last decision that moved no model, and the reasons of all moves."""
    told = machine.operator.ask("GET", "/why")[1]
    return [told["stays"], *(one["why"] for one in told["placements"])]


def judges(machine: Machine) -> list[psutil.Process]:
    """Processes of the judge that run now."""
    found = []
    for child in psutil.Process(machine.server.process.pid).children():
        with suppress(psutil.Error):
            if "mirage.serve.machine.judge_process" in child.cmdline():
                found.append(child)
    return found


@pytest.mark.slow
def test_a_guest_leaves_under_load_and_its_streams_end_well(tmp_path: Path, short: Path) -> None:
    """The device of `b` is lost, so `b` serves as a guest on the other one, and comes home when its
    device is back. Streams at the guest end well, and no request fails from then on.
    """
    with served(movable(tmp_path), short, lease_s=0) as machine:
        (home,) = devices_of(machine, "b")
        guest = OTHER[home]
        before = machine.device(home)
        before.kill()
        machine.server.until("it stands in", lambda: guest in ready_on(machine, "b"))
        at_guest = lambda: machine.ask("b", "pids", f"/replicas/{guest}/b")[0] == 200  # noqa: E731
        machine.server.until("the guest answers", at_guest)
        machine.server.until("requests go there", lambda: machine.ask("b", "pids")[0] == 200)
        streams = [machine.begins("b", 60) for _ in range(4)]
        with loaded(machine, 2, "b") as answers:
            machine.server.until("another serves", lambda: machine.has_another(home, before.pid))
            machine.server.until("b is back", lambda: devices_of(machine, "b") == [home])
            asked = len(answers)
            machine.server.until("more were asked", lambda: len(answers) > asked + 20)
        wrong = [answer for answer in answers if answer[1] != 200]
        assert not wrong, wrong[:3]
        assert [one.getresponse().read().count(b"data: {}") for one in streams] == [60] * 4
        told = lambda: machine.operator.mirage("why", "b").stdout  # noqa: E731
        machine.server.until("the guest has gone", lambda: f"stop b on {guest}, done" in told())
        assert f"drain b on {guest}, done" in told()
        assert moves(machine)["failed"] == 0
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


@pytest.mark.slow
def test_the_next_server_has_models_where_they_moved(tmp_path: Path, short: Path) -> None:
    config = movable(tmp_path, rest_s=300.0)
    with served(config, short) as first:
        (home,) = devices_of(first, "b")
        with loaded(first, 20, "b", "a" if home == LEFT else "c"):
            first.server.until("its move is over", lambda: moves(first)["done"] == 1)
        assert devices_of(first, "b") == [OTHER[home]]
        before, family = first.pids("b"), first.server.family()
        first.server.process.send_signal(signal.SIGKILL)
        first.server.process.wait()
    with served(config, short) as second:
        assert devices_of(second, "b") == [OTHER[home]] and second.pids("b") == before
        assert any("a server that died has left its engine there" in x for x in second.server.log)
        family |= second.family()
        assert second.server.end(signal.SIGTERM)[0] == 0
    assert_gone(family)
    assert not list(short.iterdir())


def test_check_says_where_models_go_and_why(tmp_path: Path, short: Path) -> None:
    done = mirage(short, "check", str(movable(tmp_path)))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "a: on left, named in the file"
    assert lines[1] in ("b: on left, placed", "b: on right, placed")
    assert lines[3].startswith("placement of 3 models on 2 devices, judged in 1 window by ")
    assert any(line.startswith("why: ") for line in lines)


def test_rules_that_nobody_knows_are_refused(tmp_path: Path, short: Path) -> None:
    done = mirage(short, "check", str(movable(tmp_path, decides=3)))
    assert done.returncode == 2 and "unknown key 'placement.decides'" in done.stderr, done.stderr
