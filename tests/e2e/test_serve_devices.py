"""Two devices behind one address: trouble of one device's server does not reach requests."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import yaml
from operated import ROSTER, Operated, around, mirage
from prometheus_client.parser import text_string_to_metric_families
from supervised import DEADLINE_S, Served, assert_gone, read_all, serving, write_config
from test_service import VARIABLES, Listener, activated

pytestmark = pytest.mark.e2e

LEASE_S = 300.0
AT_FIRST = 1310720
"""Bytes that an engine holds until it has obeyed an allotment."""
LEFT, RIGHT = "left", "right"


def tenant(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "model": "model", "max_model_len": 128, "share": 40} | keys


def config_of(folder: Path, **changes: Any) -> Path:
    """Configuration of one model on each device, and model `c` on both."""
    config = write_config(folder, "a")
    told = {
        "devices": [{"name": LEFT, "memory": "4MiB"}, {"name": RIGHT, "memory": "4MiB"}],
        "dtype": "float32",
        "tenants": [
            tenant("a", device=LEFT),
            tenant("b", device=RIGHT),
            tenant("c", devices=[LEFT, RIGHT]),
        ],
        "roster": ROSTER,
        "hang_s": 5,
    }
    config.write_text(yaml.safe_dump(told | changes))
    return config


class Machine:
    """A running server of two devices."""

    def __init__(self, server: Served, short: Path) -> None:
        self.server, self.operator = server, Operated(server, short)

    def pids(self, model: str, device: str = "") -> tuple[int, int]:
        """Process ids of an engine's API server and core; `device` selects one if the model is on
        both.
        """
        at = f"/replicas/{device}/{model}" if device else ""
        status, told = self.ask(model, "pids", at)
        assert status == 200, told
        return told["server"], told["core"]

    def ask(self, model: str, prompt: str, at: str = "") -> tuple[int, Any]:
        """Status and body of the answer to a request: at the address `at` of a replica, or at the
        server's.
        """
        body = {"model": model, "prompt": prompt}
        return self.server.request("POST", f"{at}/v1/completions", body)

    def restarts(self, model: str) -> list[int]:
        """Number of restarts of a model's engine on each device."""
        told = (self.server.request("GET", f"/mirage/state?device={d}")[1] for d in (LEFT, RIGHT))
        return [one["engines"][model]["restarts"] for one in told]

    def health(self) -> dict[str, Any]:
        told: dict[str, Any] = self.server.request("GET", "/health")[1]
        return told

    def device(self, name: str) -> psutil.Process:
        """Process of a device's server."""
        for child in psutil.Process(self.server.process.pid).children():
            if any(word.endswith(f"/{name}.json") for word in child.cmdline()):
                return child
        raise AssertionError(f"no server of {name} runs")

    def has_another(self, name: str, before: int) -> bool:
        """True once a device has a new server in place of the process `before`, and serves."""
        serves = self.health()["devices"][name]
        try:
            there = self.device(name).pid != before
        except (AssertionError, psutil.Error):
            return False
        return there and serves["status"] == "ok" and "supervisor" not in serves

    def held(self, device: str) -> dict[str, int]:
        told = self.server.request("GET", f"/mirage/state?device={device}")[1]
        return {name: one["held_bytes"] for name, one in told.get("tenants", {}).items()}

    def family(self) -> set[psutil.Process]:
        return self.server.family() | {
            psutil.Process(pid) for model in "abc" for pid in self.pids(model)
        }

    def begins(self, model: str, events: int) -> http.client.HTTPConnection:
        """Connection over which a stream of ten events a second was requested, and nothing read."""
        body = {"model": model, "prompt": "drip", "max_tokens": events, "stream": True}
        return self.server.open("POST", "/v1/completions", body)


@contextmanager
def served(
    config: Path, short: Path, *options: str, lease_s: float = LEASE_S, **variables: str
) -> Iterator[Machine]:
    """Run a server of two devices while the block runs. The block begins when all engines have
    obeyed an allotment, because an engine without one cannot be adopted.

    `variables` of the environment say how the fake engines behave.
    """
    environment = around(short) | variables
    with serving(config, *options, environment=environment, lease_s=lease_s) as server:
        server.drain()
        machine = Machine(server, short)
        try:
            for name in (LEFT, RIGHT):
                server.until(
                    "it has memory",
                    lambda n=name: (h := machine.held(n)) and min(h.values()) > AT_FIRST,
                )
            yield machine
        except BaseException:
            print("".join(server.log))
            raise


@contextmanager
def asking(machine: Machine, *models: str) -> Iterator[list[tuple[str, int, Any]]]:
    """Send requests for each model, one after the other, while the block runs; gives the list of
    (model, status, answer).
    """
    answers: list[tuple[str, int, Any]] = []
    ends = False

    def ask(model: str) -> None:
        while not ends:
            body = {"model": model, "prompt": "pids"}
            answers.append((model, *machine.server.request("POST", "/v1/completions", body)))
            time.sleep(0.05)

    with ThreadPoolExecutor(len(models)) as threads:
        asked = [threads.submit(ask, model) for model in models]
        try:
            yield answers
        finally:
            ends = True
    for one in asked:
        one.result()


def samples(metrics: str) -> dict[tuple[str, str, str], float]:
    """Values of metrics by name, device and tenant."""
    return {
        (one.name, one.labels.get("device", ""), one.labels.get("tenant", "")): one.value
        for family in text_string_to_metric_families(metrics)
        for one in family.samples
    }


def ends(metrics: str) -> dict[tuple[str, str], float]:
    """Number of ends of device servers, by device and cause, from the metrics."""
    return {
        (one.labels["device"], one.labels["cause"]): one.value
        for family in text_string_to_metric_families(metrics)
        for one in family.samples
        if one.name == "mirage_device_server_ends_total" and one.value
    }


def test_one_address_has_the_models_of_all_devices(tmp_path: Path, short: Path) -> None:
    with served(config_of(tmp_path), short) as machine:
        server, operator = machine.server, machine.operator
        cards = server.request("GET", "/v1/models")[1]["data"]
        placed = {card["id"]: card["devices"] for card in cards}
        assert placed == {"a": [LEFT], "b": [RIGHT], "c": [LEFT, RIGHT]}
        health = machine.health()
        assert health["status"] == "ok"
        assert health["tenants"]["c"] == {LEFT: "ready", RIGHT: "ready"}
        assert server.request("GET", "/health/c")[0] == 200
        assert len({machine.pids(model) for model in "ab"}) == 2
        metrics = server.request("GET", "/metrics")[1].decode()
        values = samples(metrics)
        ups = [values["mirage_tenant_up", device, "c"] for device in (LEFT, RIGHT)]
        assert ups == [1, 1]
        assert values["mirage_supervisor_up", "left", ""] == 1
        assert values["mirage_router_ends_total", "", ""] == 0
        assert metrics.count("# TYPE mirage_tenant_up gauge") == 1
        told = server.request("GET", "/mirage/overview?device=left")[1]
        assert (told["device"], [one["name"] for one in told["tenants"]]) == (LEFT, ["a", "c"])
        told = operator.mirage("why", "a")
        assert told.returncode == 0 and "each model names its devices" in told.stdout, told
        (line,) = [line for line in told.stdout.splitlines() if line.startswith("memory on left")]
        told = operator.mirage("why", "a", *line.split()[-2:])
        assert told.returncode == 0 and "nobody lent anything" in told.stdout, told
        status, told = server.request("GET", "/mirage/state")
        assert status == 400 and "name one of left, right by ?device=" in told["error"]["message"]
        status, told = server.request("POST", "/v1/completions", {"model": "d", "prompt": ""})
        assert status == 404 and told["error"]["message"].endswith("use one of 'a', 'c', 'b'")

        lines = operator.mirage("ps").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["NAME", "a", "c", "b", "c"]
        assert {line.split()[-1] for line in lines[1:]} == {LEFT, RIGHT}
        assert f"device    {LEFT}," in operator.mirage("tenants", "show", "a").stdout
        slept = operator.mirage("tenants", "sleep", "b", "--wait")
        assert slept.returncode == 0 and "b is sleeping" in slept.stdout, slept
        assert machine.pids("b"), "it wakes"
        told = operator.mirage("apply", "-f", str(server.config))
        assert told.returncode == 0 and told.stdout == "nothing differs from what holds\n", told

        family = machine.family()
        assert server.end(signal.SIGTERM)[0] == 0
    assert_gone(family)
    assert not list(short.iterdir())


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="frozen", marks=pytest.mark.slow),
    ],
)
def test_a_device_server_that_goes_is_not_noticed(
    tmp_path: Path, short: Path, number: signal.Signals
) -> None:
    with served(config_of(tmp_path), short) as machine:
        before = {model: machine.pids(model) for model in "ab"}
        first = machine.device(LEFT)
        streams = [machine.begins(model, 30) for model in "abc"]
        with asking(machine, "a", "b", "c") as answers:
            first.send_signal(number)
            machine.server.until("another one serves", lambda: machine.has_another(LEFT, first.pid))
        wrong = [answer for answer in answers if answer[1] != 200]
        assert not wrong and {model for model, *_ in answers} == {*"abc"}, wrong[:3]
        assert {model: machine.pids(model) for model in "ab"} == before, "its engines go on"
        whole = b"data: {}\n\n" * 30 + b"data: [DONE]\n\n"
        assert [read_all(one.getresponse()) for one in streams] == [whole] * 3
        text = machine.server.request("GET", "/metrics")[1].decode()
        cause = "died" if number is signal.SIGKILL else "hung"
        assert ends(text) == {(LEFT, cause): 1}
        said = "ended with signal 9" if number is signal.SIGKILL else "its server hangs"
        assert any(said in line for line in machine.server.log), "".join(machine.server.log)
        assert any("left: adopted from process" in line for line in machine.server.log)
        family = machine.family() | {first}
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert_gone(family)
    assert not list(short.iterdir())


@pytest.mark.slow
def test_without_a_lease_its_models_are_away_until_it_is_back(tmp_path: Path, short: Path) -> None:
    with served(config_of(tmp_path), short, lease_s=0) as machine:
        before = {model: machine.pids(model) for model in "ab"}
        first = machine.device(LEFT)
        with asking(machine, "b", "c") as answers:
            first.kill()
            machine.server.until("it is missed", lambda: machine.health()["status"] == "degraded")
            status, told = machine.server.request(
                "POST", "/v1/completions", {"model": "a", "prompt": "pids"}
            )
            assert status == 503, told
            machine.server.until("another one serves", lambda: machine.has_another(LEFT, first.pid))
        wrong = [answer for answer in answers if answer[1] != 200 and answer[0] == "b"]
        assert not wrong, wrong[:3]
        of_both = [status for model, status, _ in answers if model == "c"]
        assert of_both.count(200) >= len(of_both) - 1, "one may have been at work there"
        assert machine.pids("b") == before["b"] and machine.pids("a") != before["a"]
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


@pytest.mark.slow
def test_what_ended_one_replica_does_not_get_the_next(tmp_path: Path, short: Path) -> None:
    with served(config_of(tmp_path), short) as machine:
        killer = {"model": "c", "prompt": "die"}
        status, told = machine.server.request("POST", "/v1/completions", killer)
        assert status == 502 and told["error"]["code"] == "request_ended_engine", told
        again = [machine.server.request("POST", "/v1/completions", killer) for _ in range(4)]
        assert [status for status, _ in again] == [422] * 4, again
        states = machine.health()["tenants"]["c"]
        assert "ready" in states.values()
        for _ in range(10):
            assert machine.pids("c")
        machine.server.until(
            "both are there again",
            lambda: set(machine.health()["tenants"]["c"].values()) == {"ready"},
        )
        assert sorted(machine.restarts("c")) == [0, 1]
        assert machine.server.end(signal.SIGTERM)[0] == 0


@pytest.mark.slow
def test_of_replicas_that_sleep_one_wakes(tmp_path: Path, short: Path) -> None:
    with served(config_of(tmp_path), short) as machine, ThreadPoolExecutor(8) as threads:
        slept = machine.operator.mirage("tenants", "sleep", "c", "--wait")
        assert slept.returncode == 0, slept
        assert set(machine.health()["tenants"]["c"].values()) == {"sleeping"}
        asked = [threads.submit(machine.pids, "c") for _ in range(16)]
        assert len({one.result() for one in asked}) == 1, "nobody wakes the other one"
        assert {machine.pids("c") for _ in range(5)} == {asked[0].result()}
        assert sorted(machine.health()["tenants"]["c"].values()) == ["ready", "sleeping"]
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


def test_what_had_no_byte_goes_on_where_a_device_is_killed(tmp_path: Path, short: Path) -> None:
    """An engine has read a request and stands still until its device's server is killed with it. No
    byte was answered, so the router sends the request to the other device.
    """
    with (
        served(config_of(tmp_path), short, lease_s=0) as machine,
        ThreadPoolExecutor(1) as threads,
    ):
        first, (server, _) = machine.device(LEFT), machine.pids("c", LEFT)
        waiting = threads.submit(machine.ask, "c", "wait")
        time.sleep(0.2)  # it is answered after half a second; unread it would go on as well
        psutil.Process(server).suspend()
        first.kill()
        status, told = waiting.result(timeout=DEADLINE_S)
        assert status == 200, told
        assert (told["server"], told["core"]) == machine.pids("c", RIGHT)
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


@pytest.mark.slow
def test_a_frozen_engine_gets_no_more_requests_and_its_own_go_nowhere(
    tmp_path: Path, short: Path
) -> None:
    with served(config_of(tmp_path), short) as machine, ThreadPoolExecutor(1) as threads:
        other = machine.pids("c", RIGHT)
        psutil.Process(machine.pids("c", LEFT)[1]).suspend()
        waiting = threads.submit(machine.ask, "c", "silent")
        machine.server.until("it is at the left", lambda: in_flight(machine, LEFT) == 1)
        assert [machine.pids("c") for _ in range(20)] == [other] * 20
        status, told = waiting.result(timeout=DEADLINE_S)
        assert status == 502 and "hung" in told["error"]["message"], told
        machine.server.until("it is started again", lambda: machine.restarts("c") == [1, 0])
        assert machine.server.end(signal.SIGTERM)[0] == 0


def in_flight(machine: Machine, device: str) -> float:
    """Number of running requests for `c` on a device, as the router counts them."""
    text = machine.server.request("GET", "/metrics")[1].decode()
    return samples(text).get(("mirage_replica_in_flight", device, "c"), 0.0)


@pytest.mark.slow
def test_the_engines_of_a_killed_server_are_had_by_the_next(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    with served(config, short) as first:
        before = {model: first.pids(model) for model in "ab"}
        family = first.server.family()
        first.server.process.send_signal(signal.SIGKILL)
        first.server.process.wait()
    with served(config, short) as second:
        assert {model: second.pids(model) for model in "ab"} == before
        family |= second.family()
        assert second.server.end(signal.SIGTERM)[0] == 0
    assert_gone(family)
    assert not list(short.iterdir())


@pytest.mark.slow
def test_a_second_signal_ends_all_at_once(tmp_path: Path, short: Path) -> None:
    with served(config_of(tmp_path, http={"drain_delay_s": 60.0}), short) as machine:
        family = machine.family()
        machine.server.process.send_signal(signal.SIGTERM)
        machine.server.until(
            "it stops", lambda: any("once more" in line for line in machine.server.log)
        )
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert_gone(family)


def test_one_device_that_cannot_serve_leaves_the_others(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    environment = around(short) | {"FAKE_ENGINE": "dies:a"}
    told = yaml.safe_load(config.read_text())
    told["tenants"] = [one for one in told["tenants"] if one["name"] != "c"]
    config.write_text(yaml.safe_dump(told))
    with serving(config, environment=environment) as server:
        server.drain()
        status, told = server.request("POST", "/v1/completions", {"model": "b", "prompt": "pids"})
        assert status == 200, told
        status, told = server.request("POST", "/v1/completions", {"model": "a", "prompt": "pids"})
        assert status == 503, told
        assert server.request("GET", "/health")[1]["status"] == "degraded"
        assert server.end(signal.SIGTERM)[0] == 0
    assert any("device 'left' is not served" in line for line in server.log), server.log
    assert not list(short.iterdir())


def test_check_says_who_goes_where(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    done = mirage(short, "check", str(config))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "a: on left, named in the file"
    assert lines[2] == "c: on left and right, named in the file"
    heads = [lines.index(f"device {name}:") for name in (LEFT, RIGHT)]
    assert [lines[head + 2].split()[0] for head in heads] == ["a", "b"]
    told = yaml.safe_load(config.read_text())
    told["tenants"][0]["share"] = 1
    config.write_text(yaml.safe_dump(told))
    done = mirage(short, "check", str(config))
    assert done.returncode == 2
    assert done.stderr.startswith(
        "mirage: error: device left: tenant 'a': it does not fit: it needs"
    )


def test_check_reads_the_certificate(tmp_path: Path, short: Path) -> None:
    missing = {"tls": {"certificate": "none.pem", "key": "none.key"}}
    done = mirage(short, "check", str(config_of(tmp_path, http=missing)))
    assert done.returncode == 2 and done.stderr.startswith("mirage: error: http.tls.")


def test_what_cannot_be_served_ends_it_with_one_line(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    told = yaml.safe_load(config.read_text())
    told["tenants"][0]["engine_args"] = {"no_such": 1}
    told["tenants"] = told["tenants"][:2]
    config.write_text(yaml.safe_dump(told))
    with serving(config, ready_timeout_s=None, environment=around(short)) as server:
        _, stderr = server.process.communicate(timeout=DEADLINE_S)
    assert server.process.returncode == 2
    last = stderr.splitlines()[-1]
    assert last.startswith("mirage: error: device 'left': tenant 'a': engine_args.no_such"), stderr
    assert not list(short.iterdir())


@pytest.mark.slow
def test_the_process_above_speaks_for_all(tmp_path: Path, short: Path) -> None:
    """The process above the device servers tells systemd the state of all devices, and prints their
    log lines with their names.
    """
    lines, requests = tmp_path / "lines", tmp_path / "requests"
    options = ("--log-format", "json", "--log-file", str(lines), "--access-log", str(requests))
    with (
        closing(Listener(str(short / "notify"))) as manager,
        socket.create_server(("127.0.0.1", 0)) as listening,
        serving(
            config_of(tmp_path),
            *options,
            program=activated(listening),
            environment=around(short)
            | {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000000"}
            | {"FAKE_PROGRAMS": "1"},
            passed=[listening.fileno()],
            lease_s=0,
        ) as server,
    ):
        server.drain()
        assert urlsplit(server.url).port == listening.getsockname()[1]
        manager.until("READY=1")
        before = [*manager.until("WATCHDOG=1"), *manager.until("WATCHDOG=1")]
        before += manager.until("WATCHDOG=1")
        assert f"STATUS={server.url}: 2 of 2 devices are ready" in before
        for process in server.family():
            with suppress(psutil.Error):
                if process.pid != server.process.pid:
                    assert not process.environ().keys() & {*VARIABLES}
        assert server.request("POST", "/v1/completions", {"model": "b", "prompt": "pids"})[0] == 200
        assert server.end(signal.SIGTERM)[0] == 0
        rest = manager.rest()
        assert "STOPPING=1" in rest and "READY=1" not in rest
    (one,) = [json.loads(line) for line in requests.read_text().splitlines() if "/v1/" in line]
    assert (one["tenant"], one["device"], one["status"]) == ("b", RIGHT, 200)
    spoken = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {line.get("device") for line in spoken} == {None, LEFT, RIGHT}
    ready = [line for line in spoken if line.get("message", "").startswith("ready at")]
    assert {line.get("device") for line in ready} == {None, LEFT, RIGHT} and len(ready) == 3
