"""The supervisor's care for its processes, with fake engines that fail on command."""

import http.client
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
from left_shared import shared_files
from supervised import DEADLINE_S, assert_gone, serving, write_config

pytestmark = pytest.mark.e2e

PIDS = {"prompt": "pids"}


def ask(served, model: str):  # type: ignore[no-untyped-def]
    return served.request("POST", "/v1/completions", {"model": model, **PIDS})


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_everything_and_leaves_nothing(
    tmp_path: Path, number: int, code: int
) -> None:
    with serving(write_config(tmp_path, "a", "b/1")) as served:
        assert ask(served, "a")[0] == ask(served, "b/1")[0] == 200
        family, folder = served.family(), served.run_folder()
        assert len(family) >= 6  # this one, its reaper, and two processes per engine
        shared = shared_files(family)
        assert len(shared) >= 2, "each engine left some, a semaphore for one"
        status, stderr = served.end(number)
        assert status == code
        assert_gone(family)
        assert not folder.exists()
        assert not served.ready_file.exists()
    assert not any(path.exists() for path in shared)
    assert "Traceback" not in stderr


def test_a_signal_is_told_to_those_who_wait(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", "b")) as served:
        asked = {"model": "a", "prompt": "hang", "stream": True}
        stream = served.open("POST", "/v1/completions", asked).getresponse()
        assert stream.readline() == b"data: {}\n"
        plain = served.open("POST", "/v1/completions", {"model": "b", "prompt": "silent"})
        served.process.send_signal(signal.SIGTERM)
        answer = plain.getresponse()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert "stopping" in json.loads(answer.read())["error"]["message"]
        with pytest.raises(http.client.IncompleteRead) as raised:
            stream.read()
        event = json.loads(raised.value.partial.strip().removeprefix(b"data: "))
        assert "stopping" in event["error"]["message"]
        assert served.end(signal.SIGTERM)[0] == 0


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    config = write_config(tmp_path, "a")
    with serving(config, environment={"FAKE_ENGINE": "deaf"}) as served:
        family, folder = served.family(), served.run_folder()
        served.process.send_signal(signal.SIGINT)
        while "stopping" not in str(ask(served, "a")[1]):  # the first signal is at work
            pass
        assert served.end(signal.SIGINT)[0] == 130
        assert_gone(family)
        assert not folder.exists()


def test_an_engine_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a"), environment={"FAKE_ENGINE": "deaf"}) as served:
        family = served.family()
        assert served.end(signal.SIGTERM)[0] == 0
        assert_gone(family)


def test_a_terminal_that_is_gone_keeps_nothing_alive(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        assert served.process.stderr is not None
        served.process.stderr.close()
        family, folder = served.family(), served.run_folder()
        os.kill(ask(served, "a")[1]["core"], signal.SIGKILL)  # something to tell about
        # Not by asking: what is asked while it dies may be what ended it, and is then refused.
        served.until("a is down", lambda: served.engine_state("a") == "down")
        served.until("a is back", lambda: served.engine_state("a") == "ready")
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait() == 0
        assert_gone(family)
        assert not folder.exists()


def test_a_killed_supervisor_leaves_nothing_either(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a"), environment={"FAKE_ENGINE": "deaf"}) as served:
        family, folder = served.family(), served.run_folder()
        shared = shared_files(family)
        served.process.kill()
        served.process.wait()
        assert_gone(family)
        assert not folder.exists()
        assert shared and not any(path.exists() for path in shared)


@pytest.mark.parametrize("victim", ["core", "server"])
def test_a_dead_engine_comes_back_and_the_other_goes_on(tmp_path: Path, victim: str) -> None:
    with serving(write_config(tmp_path, "a", "b")) as served:
        _, first = ask(served, "a")
        hanging = served.open(
            "POST", "/v1/completions", {"model": "a", "prompt": "hang", "stream": True}
        ).getresponse()
        assert hanging.readline() == b"data: {}\n"
        shared = shared_files(map(psutil.Process, first.values()))
        os.kill(first[victim], signal.SIGKILL)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            hanging.read()
        served.until("a is down", lambda: served.engine_state("a") == "down")
        assert served.request("GET", "/health")[1]["status"] == "degraded"
        waits = served.open("POST", "/v1/completions", {"model": "a", "prompt": "pids"})
        assert ask(served, "b")[0] == 200
        assert waits.getresponse().status == 200
        assert served.engine_state("a") == "ready"
        _, second = ask(served, "a")
        assert {first["server"], first["core"]}.isdisjoint({second["server"], second["core"]})
        assert_gone({psutil.Process(pid) for pid in first.values() if psutil.pid_exists(pid)})
        assert shared and not any(path.exists() for path in shared)
        assert served.request("GET", "/mirage/state")[1]["engines"]["a"]["restarts"] == 1


def test_an_engine_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    once = tmp_path / "once"
    with serving(
        write_config(tmp_path, "a"), environment={"FAKE_ENGINE": f"once:{once}"}
    ) as served:
        os.kill(ask(served, "a")[1]["server"], signal.SIGKILL)
        served.until("a is given up", lambda: served.engine_state("a") == "failed")
        assert served.request("GET", "/mirage/state")[1]["engines"]["a"]["restarts"] == 3
        assert ask(served, "a")[0] == 503
        assert served.request("GET", "/health")[0] == 503
        status, stderr = served.end(signal.SIGTERM)
        assert status == 0
        assert stderr.count("ValueError: the moon is too near") == 3
        assert "given up after 3 restarts" in stderr


@pytest.mark.parametrize("kind", ["dies", "only"])
def test_with_all_or_nothing_one_that_fails_to_start_ends_the_others_in_one_line(
    tmp_path: Path, short: Path, kind: str
) -> None:
    logs = tmp_path / "logs"
    config = write_config(tmp_path, "a", "b")
    with serving(
        config,
        "--all-or-nothing",
        "--log-dir",
        str(logs),
        environment={"FAKE_ENGINE": f"{kind}:b", "TMPDIR": str(short)},
        ready_timeout_s=None,
    ) as served:
        _, stderr = served.process.communicate(timeout=DEADLINE_S)
        assert served.process.returncode == 1
    (line,) = (line for line in stderr.splitlines() if "error:" in line)
    assert line == (
        "mirage: error: tenant 'b': the engine ended with exit code 3 before it was ready: "
        f"ValueError: the moon is too near (full log: {logs / 'b.log'})"
    )
    assert "Engine core initialization failed" in (logs / "b.log").read_text()
    assert not list(short.iterdir())
    running = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    assert not [words for words in running if any(str(tmp_path) in word for word in words)]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("greedy", "the control server refused its engine: tenant 'a' would hold 1310720000"),
        (
            "mute",
            "its engine did not connect to the control socket in 0.5 s (--log-dir keeps logs)",
        ),
    ],
)
def test_an_engine_that_does_not_keep_the_protocol_never_gets_ready(
    tmp_path: Path, short: Path, kind: str, words: str
) -> None:
    with serving(
        write_config(tmp_path, "a"),
        environment={"FAKE_ENGINE": kind, "TMPDIR": str(short)},
        ready_timeout_s=None,
    ) as served:
        _, stderr = served.process.communicate(timeout=DEADLINE_S)
    assert served.process.returncode == 1
    (line,) = (line for line in stderr.splitlines() if "mirage: error: " in line)
    assert line.startswith("mirage: error: tenant 'a': ")
    assert words in line
    assert not list(short.iterdir())


def test_ctrl_c_while_starting(tmp_path: Path) -> None:
    with serving(
        write_config(tmp_path, "a"), environment={"FAKE_ENGINE": "deaf"}, ready_timeout_s=None
    ) as served:
        folder = served.until("an engine starts", served.run_folder)
        family = served.family()
        assert served.end(signal.SIGINT)[0] == 130
        assert_gone(family)
        assert not folder.exists()


def test_a_taken_port_costs_no_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(
            write_config(tmp_path, "a"), "--port", str(port), ready_timeout_s=None
        ) as served:
            _, stderr = served.process.communicate(timeout=DEADLINE_S)
    assert served.process.returncode == 2
    (line,) = stderr.splitlines()
    assert line.startswith(f"mirage: error: cannot listen on 127.0.0.1:{port} (")


def test_the_timeline_shows_what_engines_report(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", "b"), "--policy", "pooled") as served:

        def history() -> dict[str, Any] | None:
            body = served.timeline()
            return body if len(body["samples"]) > 2 and body["samples"][-1]["tenants"] else None

        body = served.until("there are samples", history)
        assert body["policy"] == "pooled"
        assert body["device_bytes"] == 64 * 2**20
        assert set(body["tenants"]) == {"a", "b"}
        times = [sample["t"] for sample in body["samples"]]
        assert times == sorted(times)
        newest = body["samples"][-1]["tenants"]
        assert newest["a"]["kv_blocks"] == 16
        assert json.dumps(body["tenants"]["a"]) == json.dumps(
            {"layers": 2, "layer_bytes": 65536, "extent_bytes": 65536, "extent_blocks": 1}
        )


def test_a_host_that_cannot_be_one_is_one_line(tmp_path: Path) -> None:
    config = write_config(tmp_path, "a")
    with serving(config, "--host", "a" * 80, "--no-keys", ready_timeout_s=None) as served:
        _, stderr = served.process.communicate(timeout=DEADLINE_S)
    assert served.process.returncode == 2
    (line,) = stderr.splitlines()
    assert line.startswith(f"mirage: error: cannot listen on {'a' * 80}:0 (")


def test_a_start_that_takes_long_is_no_silence(tmp_path: Path) -> None:
    slowly = {"FAKE_ENGINE": "slow", "FAKE_PROBE_S": "2", "FAKE_PROGRESS_S": "0.7"}
    with serving(write_config(tmp_path, "a"), environment=slowly) as served:
        _, stderr = served.end(signal.SIGTERM)
    lines = stderr.splitlines()
    before = "mirage: looking at the models, before any engine starts, for "
    assert len([line for line in lines if line.startswith(before)]) >= 2
    said = [line for line in lines if line.startswith("mirage: a: starting for ")]
    assert len(said) >= 2
    assert any(line.endswith(" of 300 s (Loading weights: 50% |)") for line in said)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_before_any_engine_starts_leaves_nothing(
    tmp_path: Path, short: Path, number: int, code: int
) -> None:
    environment = {"FAKE_PROBE_S": "60", "TMPDIR": str(short)}
    with serving(
        write_config(tmp_path, "a"), environment=environment, ready_timeout_s=None
    ) as served:
        served.until("it asks vLLM", lambda: served.runs("fake_probe.py"))
        family = served.family()
        status, stderr = served.end(number)
    assert (status, "Traceback" in stderr) == (code, False)
    assert_gone(family)
    assert not list(short.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_configuration_is_checked_leaves_nothing(
    tmp_path: Path, short: Path, number: int
) -> None:
    environment = {"FAKE_PROBE_S": "60", "TMPDIR": str(short)}
    config = write_config(tmp_path, "a")
    with serving(
        config, command="check", environment=environment, ready_timeout_s=None
    ) as checking:
        checking.until("it asks vLLM", lambda: checking.runs("fake_probe.py"))
        family = checking.family()
        status, stderr = checking.end(number)
    said = [line for line in stderr.splitlines() if "looking at the models" not in line]
    assert (status, said) == (130, []), "but that it still looks, on a busy machine"
    assert_gone(family)
    assert not list(short.iterdir())
