"""An operator at the admin socket of a real server with fake engines, by the real commands."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from operated import around, content, mirage
from short_folders import short_of_module  # noqa: F401
from supervised import HERE, WITH_FAKES, Served, serving, write_config

from mirage.errors import CommandFailed
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.shown import HEADINGS

pytestmark = pytest.mark.e2e

ROSTER = {"busy_s": 0.0, "busy_worth": 0.0, "patience_s": 0.0, "drain_s": 0.2, "worth": 0.0}
LIMIT_S = 120


@contextmanager
def served(
    folder: Path, short: Path, *options: str, look_s: float = 0.05, **changes: Any
) -> Iterator[Served]:
    """Run a server of three tenants of 40 % each while the block runs; only `a` is
    awake at first.
    """
    folder.mkdir(exist_ok=True)
    tenants = [
        {"name": name, "model": "model", "max_model_len": 128, "share": 40, "start": start}
        for name, start in (("a", "eager"), ("b", "on_request"), ("o/c", "on_request"))
    ]
    told = {"device": {"memory": "4MiB"}, "tenants": tenants, "roster": ROSTER} | changes
    told = {key: value for key, value in told.items() if value is not None}
    config = write_config(folder, *"abc", **told)
    environment = around(short) | {"FAKE_LOOK_S": str(look_s)}
    with serving(config, *options, environment=environment) as server:
        server.drain()
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("s"), short, "--log-level", "error") as running:
        yield running


def said(short: Path, *words: str) -> str:
    done = mirage(short, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def socket_in(short: Path) -> Path:
    (path,) = short.glob("mirage-*/admin-*.sock")
    return path


def ask(
    short: Path, method: str, path: str, **headers: str
) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    """Send a request to the admin socket itself, without a command."""
    connection = http.client.HTTPConnection("admin", timeout=LIMIT_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(socket_in(short)))
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body, answer.headers


def until(short: Path, name: str, state: str) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT_S
    while (one := ask(short, "GET", f"/tenants/{name}")[1])["state"] != state:
        assert time.monotonic() < deadline, one
        time.sleep(0.05)
    return one


def have(short: Path, name: str, act: str, state: str) -> None:
    """Bring a tenant into a state with an act such as "sleep", and wait until it is there."""
    assert ask(short, "POST", f"/tenants/{name}/{act}")[0] == 202
    until(short, name, state)


def test_the_socket_is_the_users_alone(server: Served, short: Path) -> None:
    path = socket_in(short)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.name == f"admin-{server.url.rpartition(':')[2]}.sock"


def test_ps_lists_all_tenants(server: Served, short: Path) -> None:
    have(short, "a", "wake", "ready")
    head, *rows = said(short, "ps").splitlines()
    assert head.split() == [*HEADINGS]
    assert [row.split()[0] for row in rows] == ["a", "b", "o/c"]
    name, state, *_ = rows[0].split()
    assert (name, state) == ("a", "ready") and "1.6 MiB" in rows[0]


def test_all_is_told_of_a_tenant(server: Served, short: Path) -> None:
    have(short, "a", "wake", "ready")
    status, told, _ = ask(short, "GET", "/tenants")
    assert status == 200 and told["server"]["pid"] == server.process.pid
    assert told["server"]["url"] == server.url and told["server"]["device_bytes"] == 4 << 20
    one = ask(short, "GET", "/tenants/a")[1]
    assert one["state"] == "ready" and one["weights"] == "device" and one["ready_s"] == 0.0
    assert 0 < one["asleep_bytes"] < one["held_bytes"] <= 4 << 20
    assert abs(one["since"] - time.time()) < 600 and one["spec"]["keep_alive_s"] is None
    assert "start eager" in said(short, "tenants", "show", "a")


def test_a_tenant_sleeps_wakes_stops_and_starts_anew(server: Served, short: Path) -> None:
    body = {"model": "a", "prompt": "pids"}
    before = server.request("POST", "/v1/completions", body)[1]["core"]
    assert "a is sleeping" in said(short, "tenants", "sleep", "a", "--wait")
    asleep = ask(short, "GET", "/tenants/a")[1]
    assert asleep["state"] == "sleeping" and asleep["held_bytes"] == asleep["asleep_bytes"]
    assert asleep["weights"] == "host"
    assert "already" in said(short, "tenants", "sleep", "a")
    assert "a is ready" in said(short, "tenants", "wake", "a", "--wait")
    assert server.request("POST", "/v1/completions", body)[1]["core"] == before
    assert "a is ready" in said(short, "tenants", "restart", "a", "--wait")
    assert server.request("POST", "/v1/completions", body)[1]["core"] != before
    assert "a is stopped" in said(short, "tenants", "stop", "a", "--wait")
    gone = ask(short, "GET", "/tenants/a")[1]
    assert gone["held_bytes"] == 0 and gone["weights"] == "disk"
    assert server.request("POST", "/v1/completions", body)[0] == 200


def test_a_name_may_have_slashes(server: Served, short: Path) -> None:
    have(short, "o/c", "wake", "ready")
    assert "o/c is stopped" in said(short, "tenants", "stop", "o/c", "--wait")


def test_a_drain_lets_requests_end(server: Served, short: Path) -> None:
    have(short, "a", "wake", "ready")
    connection = server.open("POST", "/v1/completions", {"model": "a", "prompt": "wait"})
    deadline = time.monotonic() + LIMIT_S
    while not ask(short, "GET", "/tenants/a")[1]["running"]:
        assert time.monotonic() < deadline
    status, taken, _ = ask(short, "POST", "/tenants/a/drain")
    assert status == 202 and taken["state"] == "draining" and "60 s at most" in taken["will"]
    assert connection.getresponse().status == 200
    until(short, "a", "sleeping")


def test_a_state_that_lasts_no_time_is_waited_for_as_well(server: Served, short: Path) -> None:
    have(short, "a", "wake", "ready")
    connection = server.open("POST", "/v1/completions", {"model": "a", "prompt": "wait"})
    deadline = time.monotonic() + LIMIT_S
    while not ask(short, "GET", "/tenants/a")[1]["running"]:
        assert time.monotonic() < deadline
    assert "a is sleeping" in said(short, "tenants", "sleep", "a", "--wait", "--drain", "0")
    assert connection.getresponse().status == 200  # it woke for what waits in it


def test_who_watches_hears_of_each_change(server: Served, short: Path) -> None:
    have(short, "a", "wake", "ready")
    connection = http.client.HTTPConnection("admin", timeout=LIMIT_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(socket_in(short)))
    connection.request("GET", "/watch")
    lines = connection.getresponse()
    ask(short, "POST", "/tenants/a/sleep")
    heard = []
    while not heard or heard[-1]["state"] != "sleeping":
        heard.append(json.loads(lines.readline()))
    assert [(one["tenant"], one["before"], one["state"]) for one in heard] == [
        ("a", "ready", "ready"),
        ("a", "ready", "draining"),
        ("a", "draining", "sleeping"),
    ]
    assert [one["act"] for one in heard] == ["sleep", "", ""]
    connection.close()


def test_a_state_is_told_by_itself_and_not_by_the_next_look(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder,
        served(tmp_path, Path(folder), look_s=3600.0),
    ):
        assert "a is sleeping" in said(Path(folder), "tenants", "sleep", "a", "--wait")


def test_who_knows_an_older_revision_changes_nothing(server: Served, short: Path) -> None:
    have(short, "a", "wake", "ready")
    tag = ask(short, "GET", "/tenants/a")[2]["ETag"]
    status, taken, headers = ask(short, "POST", "/tenants/a/wake", **{"If-Match": tag})
    assert status == 202 and headers["ETag"] == f'"{taken["revision"]}"' != tag
    status, body, _ = ask(short, "POST", "/tenants/a/stop", **{"If-Match": tag})
    assert status == 412 and "look again" in body["error"]["message"]
    assert ask(short, "GET", "/tenants/a")[1]["state"] == "ready"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/tenants/x/wake", 404, "no tenant 'x' here: use one of a, b, o/c"),
        ("/tenants/a/dance", 404, "no act 'dance': use one of sleep, wake"),
        ("/tenants/b/sleep", 409, "b is stopped: it has no engine that could sleep"),
        ("/tenants/a/drain?drain_s=soon", 400, "drain_s='soon': write seconds"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    server: Served, short: Path, path: str, status: int, words: str
) -> None:
    have(short, "b", "stop", "stopped")
    found, body, _ = ask(short, "POST", path)
    assert found == status and words in body["error"]["message"]


def test_commands_end_with_one_line(server: Served, short: Path) -> None:
    have(short, "b", "stop", "stopped")
    (odd := short / "\udcff.yaml").write_text(yaml.safe_dump(content("a")))
    for words, code, line in [
        (["tenants", "wake", "x"], 2, "no tenant 'x' here"),
        (["logs", "x"], 2, "no tenant 'x' here"),
        (["tenants", "sleep", "b"], 1, "b is stopped"),
        (["tenants", "stop", "a?x"], 2, "no tenant 'a?x' here"),
        (["tenants", "show", "a#x y"], 2, "no tenant 'a#x y' here"),
        (["tenants", "show", "ä%20"], 2, "no tenant 'ä%20' here"),
        (["tenants", "remove", "\udcff"], 2, "no tenant '%FF' here"),
        (["apply", "-f", str(odd), "--dry-run"], 2, "no model folder"),
        (["tenants", "show", "a\nb"], 2, "no tenant 'a\\nb' here"),
        (["tenants", "show", ""], 2, "the tenant's name is empty"),
        (["tenants", "wake", ""], 2, "the tenant's name is empty"),
        (["tenants", "set", "b", "\udcff=1"], 2, "write text in UTF-8"),
        (["tenants", "set", "b", "max_wait_s=.inf"], 2, "finite numbers"),
        (["tenants", "set", "b", "limits={x: [.nan]}"], 2, "finite numbers"),
        (["tenants", "dance", "b"], 2, "dance"),
        (["ps", "--socket", "x" * 300], 2, "no server listens at xxx"),
        (["ps", "--socket", "/nowhere"], 2, "no server listens at /nowhere"),
    ]:
        done = mirage(short, *words)
        assert done.returncode == code, (words, done.stderr)
        assert len(done.stderr.splitlines()) == 1 and line in done.stderr


@contextmanager
def answering(short: Path, answer: bytes) -> Iterator[Path]:
    """Run a program that gives `answer` to every request at a socket, in place of a server."""
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(short / "other.sock"))
        one.listen()

        def serve() -> None:
            with suppress(OSError):  # shut down
                while True:
                    with one.accept()[0] as connection:
                        connection.recv(65536)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield short / "other.sock"
        finally:
            one.shutdown(socket.SHUT_RDWR)
            thread.join()
            (short / "other.sock").unlink()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (b"200 OK\r\nContent-Length: 6\r\n\r\n<html>", "is none of this version's `mirage serve`"),
        (b"200 OK\r\nContent-Length: 3\r\n\r\n{}\n", "is none of this version's `mirage serve`"),
        (b"302 -\r\nContent-Length: 0\r\n\r\n", "is none of this version's `mirage serve`"),
        (b"200 OK\r\nContent-Length: 99\r\n\r\n{}", "the server does not answer"),
        (b"500 -\r\nContent-Length: 1\r\n\r\n-", "answer 500"),
        (b"", "the server does not answer"),
    ],
)
def test_the_answer_of_another_program_is_one_line(short: Path, answer: bytes, line: str) -> None:
    with answering(short, b"HTTP/1.1 " + answer) as path:
        client = AdminClient(path)
        for asked in (client.tenants, client.overview, lambda: client.why(None, 60.0)):
            with pytest.raises(CommandFailed, match=line):
                asked()


def test_a_line_of_another_program_is_one_line(short: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n"
    none = "is none of this version's `mirage serve`"
    with (
        answering(short, answer) as path,
        AdminClient(path).watch() as lines,
        pytest.raises(CommandFailed, match=none),
    ):
        next(iter(lines))


def test_each_act_is_a_line_of_the_log(server: Served, short: Path) -> None:
    ask(short, "POST", "/tenants/a/wake")
    ask(short, "POST", "/tenants/nobody%0Ahere/stop")
    lines = server.until("told", lambda: [line for line in server.log if "nobody" in line])
    told = r"uid=\d+ pid=\d+ act=stop tenant='nobody\\nhere' result=404 no tenant"
    assert re.match(rf"\d{{4}}-\d\d-\d\d .* {told}", lines[0]), lines
    uid = os.getuid()
    assert any(f"uid={uid} " in x and "act=wake tenant=a result=202 a " in x for x in server.log)


def test_logs_are_read_and_followed(server: Served, short: Path) -> None:
    have(short, "a", "wake", "ready")
    log = Path(ask(short, "GET", "/tenants/a")[1]["log"])
    with log.open("a") as file:
        file.write("one\ntwo\n")
    assert said(short, "logs", "a", "--lines", "2") == "one\ntwo\n"
    assert said(short, "logs", "a").endswith("one\ntwo\n")
    following = subprocess.Popen(
        [sys.executable, WITH_FAKES, "logs", "a", "--follow", "--lines", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), **around(short)},
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "two\n"
    with log.open("a") as file:
        file.write("three\n")
    assert following.stdout.readline() == "three\n"
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=LIMIT_S)
    assert following.returncode == 130


def test_of_two_servers_one_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        short = Path(folder)
        done = mirage(short, "ps")
        assert done.returncode == 2 and "is found in" in done.stderr
        tenant = {"name": "a", "model": "model", "max_model_len": 128, "share": 40}
        with served(tmp_path / "one", short, tenants=[tenant], roster=None) as one:
            first = socket_in(short)
            assert mirage(short, "ps").stdout.splitlines()[1].split()[:2] == ["a", "ready"]
            with served(tmp_path / "two", short, tenants=[tenant], roster=None) as two:
                done = mirage(short, "ps")
                assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
                assert str(first) in done.stderr and f"pid {two.process.pid}" in done.stderr
                assert mirage(short, "ps", "--socket", str(first)).returncode == 0
                two.process.send_signal(signal.SIGTERM)
                assert two.process.wait(LIMIT_S) == 0
            one.process.kill()
            one.process.wait()
            one_gone = time.monotonic() + LIMIT_S
            while first.exists():
                assert time.monotonic() < one_gone
                time.sleep(0.05)
        assert mirage(short, "ps").returncode == 2
