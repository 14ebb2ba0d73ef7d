"""A file applied while two devices are served: all of it or nothing, and models move for it."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from operated import Operated, around
from short_folders import short_of_module  # noqa: F401
from supervised import serving
from test_serve_devices import LEFT, RIGHT, Machine, asking, config_of, served, tenant
from test_serve_http import is_router
from test_serve_moves import devices_of, ready_on

from mirage.serve.access.ring import digest

pytestmark = pytest.mark.e2e


def content(*tenants: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Tenants of the file at first, with `tenants` in addition to `a` and `b`, and with `changes`
    of its keys.
    """
    return {"tenants": [tenant("a", device=LEFT), tenant("b", device=RIGHT), *tenants]} | changes


BOTH = tenant("c", devices=[LEFT, RIGHT])


class Applied:
    """A server of two devices, and an operator who applies files to it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine, self._folder = machine, folder
        self.base = yaml.safe_load(machine.server.config.read_text())

    def file(self, told: dict[str, Any]) -> Path:
        path = self._folder / "other.yaml"
        path.write_text(yaml.safe_dump(self.base | told))
        return path

    def apply(self, told: dict[str, Any], *words: str) -> tuple[int, str]:
        done = self.machine.operator.mirage("apply", "-f", str(self.file(told)), *words)
        return done.returncode, done.stdout + done.stderr

    def has(self, told: dict[str, Any], *words: str) -> list[str]:
        """Apply a file, which must be accepted; return the lines that the command prints."""
        code, words_told = self.apply(told, *words)
        assert code == 0, words_told
        return words_told.splitlines()

    def devices(self, model: str) -> list[str]:
        return devices_of(self.machine, model)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Iterator[Applied]:
    folder = tmp_path_factory.mktemp("s")
    with served(config_of(folder), short) as machine:
        yield Applied(machine, folder)
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


@pytest.fixture
def first(up: Applied) -> Applied:
    """The server with the first file applied again, and all its models serving."""
    up.machine.operator.apply(up.base | content(BOTH))
    cards = lambda: up.machine.server.request("GET", "/v1/models")[1]["data"]  # noqa: E731
    places = {"a": [LEFT], "b": [RIGHT], "c": [LEFT, RIGHT]}
    up.machine.server.until(
        "they are there", lambda: {card["id"]: card["devices"] for card in cards()} == places
    )
    assert [up.machine.ask(model, "pids")[0] for model in "abc"] == [200] * 3
    return up


def test_tenants_come_and_go_on_the_devices_that_they_name(first: Applied) -> None:
    both = tenant("d", devices=[LEFT, RIGHT])
    pids = {model: first.machine.pids(model) for model in "ab"}
    told = first.has(content(BOTH, both, tenant("e", device=RIGHT)), "--dry-run")
    assert [line for line in told if "d: would be added" in line and line.startswith("left: ")]
    assert [line for line in told if "e: would be added" in line and line.startswith("right: ")]
    assert first.devices("d") == []
    told = first.has(content(BOTH, both, tenant("e", device=RIGHT)), "--wait")
    assert {"d is ready on left", "d is ready on right", "e is ready on right"} <= {*told}, told
    assert (first.devices("d"), first.devices("e")) == ([LEFT, RIGHT], [RIGHT])
    assert first.machine.ask("e", "pids")[0] == first.machine.ask("d", "pids")[0] == 200
    told = first.has(content(BOTH), "--wait")
    assert {"d is absent on left", "d is absent on right", "e is absent on right"} <= {*told}, told
    assert first.devices("d") == [] and first.machine.ask("d", "pids")[0] == 404
    assert {model: first.machine.pids(model) for model in "ab"} == pids


def test_keys_of_a_model_hold_for_its_replicas(first: Applied) -> None:
    limited = BOTH | {"limits": {"requests_per_minute": 1}}
    told = first.has(content(limited))
    assert "left: c: changed, limits.requests_per_minute at once" in " ".join(told), told
    assert [first.machine.ask("c", "pids")[0] for _ in range(2)] == [200, 429]
    done = first.machine.operator.mirage("tenants", "set", "c", "limits=", "aliases=[x]")
    assert done.returncode == 0, done.stderr
    assert first.machine.ask("x", "pids")[0] == 200
    assert first.devices("x") == [LEFT, RIGHT]
    done = first.machine.operator.mirage("tenants", "remove", "c", "--wait")
    assert done.returncode == 0 and done.stdout.count("c is absent on") == 2, done
    assert first.machine.ask("c", "pids")[0] == 404


def test_a_model_goes_to_the_device_that_the_file_names(first: Applied) -> None:
    """A new file puts `a` on the other device. It is there before it leaves the old one, so no
    request fails and a running stream ends well.
    """
    moved = {"tenants": [tenant("a", device=RIGHT), tenant("b", device=RIGHT), BOTH]}
    told = first.has(moved, "--dry-run")
    assert told == ["a: would go from left to right, and is there before it leaves"]
    stream = first.machine.begins("a", 20)
    with asking(first.machine, "a") as answers:
        told = first.has(moved, "--wait")
        assert {"a is ready on right", "a is absent on left"} <= {*told}, told
    assert {status for _, status, _ in answers} == {200}
    assert stream.getresponse().read().count(b"data: {}") == 20, "it ends where it began"
    assert first.devices("a") == [RIGHT]
    why = lambda: first.machine.operator.mirage("why", "a").stdout  # noqa: E731
    first.machine.server.until("the move is done", lambda: "stop a on left, done" in why())
    assert "the file has it so" in why()


def refused(up: Applied, told: dict[str, Any], status: int, words: str) -> None:
    ask = up.machine.operator.ask
    before = ask("GET", "/config")[1]
    found, answer, _ = ask("PUT", "/config", up.base | told)
    assert (found, words in answer["error"]["message"]) == (status, True), answer
    assert "\n" not in answer["error"]["message"]
    assert ask("GET", "/config")[1] == before


def test_what_one_device_cannot_have_none_has(first: Applied) -> None:
    wrong = tenant("e", device=RIGHT, engine_args={"no_such": 1})
    refused(first, content(BOTH, tenant("d", device=LEFT), wrong), 400, "engine_args.no_such")
    assert first.devices("d") == []
    large = tenant("e", device=RIGHT, share=1)
    refused(first, content(BOTH, tenant("d", device=LEFT), large), 400, "it does not fit")
    assert first.devices("d") == []


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        ({"hang_s": 9}, 409, "hang_s cannot change while the server runs"),
        (
            {"http": {"tls": {"certificate": "/none", "key": "/none"}}},
            409,
            "http.tls cannot change while the server runs",
        ),
        ({"http": {"head_s": 0}}, 400, "http.head_s"),
        ({"placement": {"decide_s": 0}}, 400, "placement.decide_s"),
        (
            {"devices": [{"name": n, "memory": "8MiB"} for n in (LEFT, RIGHT)]},
            409,
            "devices cannot change while the server runs",
        ),
        ({"devices": [{"name": LEFT, "memory": "4MiB"}]}, 400, "no device 'right'"),
        ({"devices": {}}, 400, "devices"),
        ({"devices": None}, 400, "devices"),
        ({"tenants": []}, 400, "tenants"),
        ({"tenants": [tenant("a", device=LEFT, devices=[RIGHT])]}, 400, "write only one"),
        ({"tenants": [tenant("a", device="there")]}, 400, "no device 'there'"),
        ({"tenants": [tenant("a", device=LEFT), tenant("a", device=RIGHT)]}, 400, "a"),
        ({"tenants": [tenant("a", device=LEFT, share="much")]}, 400, "share"),
        ({"tenants": ["a"]}, 400, "tenants"),
    ],
)
def test_a_file_that_cannot_be_had_is_refused_in_one_line(
    first: Applied, told: dict[str, Any], status: int, words: str
) -> None:
    refused(first, content(BOTH) | told, status, words)


def test_rules_of_placement_change_at_once(first: Applied) -> None:
    told = first.has(content(BOTH) | {"placement": {"off": True}}, "--dry-run")
    assert told == ["placement.off: would be changed, at once"]
    assert first.has(content(BOTH) | {"placement": {"off": True}}) == [
        "placement.off: changed, at once"
    ]
    why = first.machine.operator.mirage("why").stdout
    assert "placement.off is true: nothing moves" in why, why
    assert first.has(content(BOTH)) == ["placement.off: changed, at once"]


def test_a_file_of_one_device_is_refused(first: Applied) -> None:
    told = {"device": {"memory": "4MiB"}, "dtype": "float32", "tenants": [tenant("a")]}
    status, answer, _ = first.machine.operator.ask("PUT", "/config", told)
    assert status == 409 and "devices cannot change" in answer["error"]["message"], answer


def test_a_device_that_is_named_tells_its_own_part_and_takes_none(first: Applied) -> None:
    ask = first.machine.operator.ask
    told = ask("GET", f"/config?device={LEFT}")[1]["configuration"]
    assert [one["name"] for one in told["tenants"]] == ["a", "c"]
    assert "devices" in ask("GET", "/config")[1]["configuration"]
    for method, path in (("PUT", "/config"), ("PATCH", "/tenants/c"), ("DELETE", "/tenants/c")):
        status, answer, _ = ask(method, f"{path}?device={LEFT}", told)
        assert status == 409 and "the server above" in answer["error"]["message"], answer


def test_a_name_with_a_line_break_is_one_that_nobody_has(first: Applied) -> None:
    ask = first.machine.operator.ask
    asked = [("GET", ""), ("POST", "/sleep"), ("PATCH", ""), ("DELETE", "")]
    for method, act in asked:
        status, answer, _ = ask(method, f"/tenants/a%0Ab{act}", {"priority": 1})
        assert status == 404 and "no tenant 'a\\nb' here" in answer["error"]["message"], answer


def test_another_folder_of_the_same_file_is_asked_about(first: Applied) -> None:
    """The same file is applied with another folder for its relative paths. It is refused, because
    no model is there; with the same folder in another spelling nothing differs.
    """
    told = first.base | content(BOTH)
    status, answer, _ = first.machine.operator.ask("PUT", "/config?folder=/nowhere", told)
    assert status == 400 and "model" in answer["error"]["message"], answer
    same = first.machine.server.config.parent
    answer = first.machine.operator.apply(told, f"folder={same}/../{same.name}")
    assert (answer["applied"], answer["lines"]) == (False, ["nothing differs from what holds"])


def test_names_of_files_that_are_none(first: Applied) -> None:
    """The name that is given for an applied file may be odd. Relative paths begin in the server's
    folder all the same.
    """
    told = first.base | content(BOTH, tenant("d", device=LEFT))
    for name in ("", "/", "..", "%00", "a%23b"):
        status, answer, _ = first.machine.operator.ask(
            "PUT", f"/config?dry_run=1&file={name}", told
        )
        assert (status, answer["added"]) == (200, ["d"]), answer


def test_two_operators_at_once(first: Applied) -> None:
    """Four files are applied at the same time. They are applied one after the other, and the last
    one holds on both devices.
    """
    done: list[tuple[int, Any]] = []
    wanted = [first.base | content(BOTH, tenant(n, devices=[LEFT, RIGHT])) for n in "defg"]

    def apply(told: dict[str, Any]) -> None:
        done.append(first.machine.operator.ask("PUT", "/config", told)[:2])

    threads = [threading.Thread(target=apply, args=(told,)) for told in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in done] == [200] * 4, done
    revisions = sorted(told["revision"] for _, told in done)
    assert revisions == list(range(revisions[0], revisions[0] + 4))
    last = max(done, key=lambda one: one[1]["revision"])[1]["added"][0]
    names = {one["name"] for one in first.machine.operator.ask("GET", "/tenants")[1]["tenants"]}
    first.machine.server.until(
        "the last one holds",
        lambda: (
            {card["id"] for card in first.machine.server.request("GET", "/v1/models")[1]["data"]}
            == {*"abc", last}
        ),
    )
    assert last in names
    stale = {"If-Match": f'"{revisions[0]}"'}
    assert first.machine.operator.ask("PUT", "/config", wanted[0], **stale)[0] == 412
    assert first.machine.operator.ask("POST", "/tenants/a/sleep", None, **stale)[0] == 412
    tags = {first.machine.operator.ask("GET", f"/tenants{one}")[2]["ETag"] for one in ("", "/a")}
    assert tags == {f'"{revisions[-1]}"'}


def test_sighup_applies_the_file(first: Applied) -> None:
    server = first.machine.server
    before = server.config.read_text()
    try:
        server.config.write_text(
            yaml.safe_dump(first.base | content(BOTH, tenant("d", device=LEFT)))
        )
        server.process.send_signal(signal.SIGHUP)
        server.until("d serves", lambda: ready_on(first.machine, "d") == {LEFT})
        server.config.write_text("devices: [")
        server.process.send_signal(signal.SIGHUP)
        server.until("it says so", lambda: any("nothing is applied" in x for x in server.log))
        assert first.devices("d") == [LEFT]
    finally:
        server.config.write_text(before)
    server.process.send_signal(signal.SIGHUP)
    server.until("d has gone", lambda: first.devices("d") == [])


def test_limits_of_clients_change_at_the_router(first: Applied) -> None:
    server = first.machine.server
    pids = {model: first.machine.pids(model) for model in "abc"}
    stream = first.machine.begins("a", 20)
    told = first.has(content(BOTH, http={"connections_per_peer": 1}))
    assert told == ["http.connections_per_peer: changed, at once"]
    status, answer = server.request("GET", "/live")
    assert (status, answer["error"]["code"]) == (503, "too_many_connections")
    assert stream.getresponse().read().count(b"data: {}") == 20, "it ends where it began"
    stream.close()
    told = first.has(content(BOTH), "--dry-run")
    assert told == ["http.connections_per_peer: would be changed, at once"]
    assert first.has(content(BOTH)) == ["http.connections_per_peer: changed, at once"]
    with closing(first.machine.begins("b", 1)) as other:
        assert {model: first.machine.pids(model) for model in "abc"} == pids
        other.getresponse().read()


def test_a_dry_run_tells_what_latencies_would_become_on_each_device(first: Applied) -> None:
    def asked(model: str) -> None:
        body = {"model": model, "prompt": "drip", "max_tokens": 1, "stream": True}
        assert first.machine.server.request("POST", "/v1/completions", body)[0] == 200

    changed = {"tenants": [tenant("a", device=LEFT, share=30), tenant("b", device=RIGHT), BOTH]}
    for _ in range(25):
        asked("a")
    rows = lambda: first.machine.operator.ask("GET", f"/requests?device={LEFT}")[1]  # noqa: E731
    first.machine.server.until(
        "they have ended",
        lambda: sum(one["tenant"] == "a" for one in rows()["requests"]) >= 25,
    )
    told = first.has(changed, "--dry-run")
    assert told[0].startswith("left: a: would be changed, share with its next engine"), told
    assert told[1].startswith("left: simulated with the "), told
    table = [line.split() for line in told[2:]]
    assert ["a", "measured"] in [row[:2] for row in table], told
    assert [row[0] for row in table[2:4]] == ["now", "after"], told
    found = json.loads("\n".join(first.has(changed, "--dry-run", "--json")))
    assert "what_if" not in found
    assert found["devices"].get(RIGHT, {}).get("prediction") is None, "nothing changes there"
    one = found["devices"][LEFT]
    assert "what_if" not in one and one["no_prediction"] is None
    assert set(one["prediction"]["tenants"]) == {"a", "c"}
    few = first.has(
        {"tenants": [changed["tenants"][0], tenant("b", device=RIGHT, share=30), BOTH]}, "--dry-run"
    )
    assert "right: fewer than 20 requests in the last hour: no prediction" in few, few


@pytest.mark.slow
def test_what_was_applied_to_devices_outlives_their_server(tmp_path: Path, short: Path) -> None:
    config, state = config_of(tmp_path), tmp_path / "state.json"
    keeps = ("--state", str(state))
    wanted = yaml.safe_load(config.read_text())
    wanted["tenants"] = [tenant("a", device=LEFT), tenant("d", device=RIGHT)]
    begin = "mirage: operators: --socket "
    with serving(config, *keeps, environment=around(short)) as server:
        server.drain()
        said = lambda: [line for line in server.log if line.startswith(begin)]  # noqa: E731
        (line,) = server.until("it says its socket", said)
        assert not state.exists()
        (tmp_path / "other.yaml").write_text(yaml.safe_dump(wanted))
        words = ("apply", "-f", str(tmp_path / "other.yaml"), "--socket")
        done = Operated(server, short).mirage(*words, line.removeprefix(begin).strip())
        assert done.returncode == 0, done
        assert json.loads(state.read_text())["configuration"] == wanted
        assert server.end(signal.SIGTERM)[0] == 0
    with serving(config, *keeps, environment=around(short)) as server:
        server.drain()
        counts = f"{state} counts: it was applied after"
        server.until("it says so", lambda: any(counts in line for line in server.log))
        cards = server.request("GET", "/v1/models")[1]["data"]
        assert {card["id"]: card["devices"] for card in cards} == {"a": [LEFT], "d": [RIGHT]}
        assert server.end(signal.SIGTERM)[0] == 0


@pytest.mark.slow
def test_keys_change_at_the_router(tmp_path: Path, short: Path) -> None:
    """The file of keys is changed while the server runs. A revoked key is refused from then on,
    also by a router that is started later.
    """
    config, keys = config_of(tmp_path), tmp_path / "keys.yaml"

    def write(*secrets: str) -> None:
        own = [{"name": s, "sha256": digest(s), "models": "all", "admin": True} for s in secrets]
        keys.touch(0o600)
        keys.write_text(yaml.safe_dump({"keys": own}))

    def ask(secret: str, *, stream: bool = False) -> http.client.HTTPConnection:
        parts = urlsplit(server.url)
        body = {"model": "a", "prompt": "drip", "max_tokens": 10, "stream": True}
        there = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        told = json.dumps(body if stream else {"model": "a", "prompt": "pids"})
        headers = {"Content-Type": "application/json", "x-api-key": secret}
        there.request("POST", "/v1/completions", told, headers)
        return there

    def status(secret: str) -> int:
        with closing(ask(secret)) as there:
            return there.getresponse().status

    write("kept", "revoked")
    environment = around(short)
    with serving(config, "--keys", str(keys), environment=environment) as server:
        server.drain()
        server.until("it serves", lambda: status("kept") == 200)
        assert status("revoked") == 200
        with closing(ask("revoked", stream=True)) as stream:
            write("kept", "new")
            server.process.send_signal(signal.SIGHUP)
            server.until("the new one holds", lambda: status("new") == 200)
            assert (status("kept"), status("revoked")) == (200, 401)
            assert stream.getresponse().read().count(b"data: {}") == 10, "what runs goes on"
        (router,) = (p for p in server.family() if is_router(p) and not p.children())
        router.kill()
        router.wait()
        server.until("another router serves", lambda: status("new") == 200)
        assert status("revoked") == 401
        write("kept")
        begin = "mirage: operators: --socket "
        said = lambda: [line for line in server.log if line.startswith(begin)]  # noqa: E731
        (line,) = server.until("it says its socket", said)
        socket = line.removeprefix(begin).strip()
        done = Operated(server, short).mirage("keys", "reload", "--socket", socket)
        assert done.returncode == 0 and "keys: 1 of" in done.stdout, done
        assert (status("kept"), status("new")) == (200, 401)
        assert server.end(signal.SIGTERM)[0] == 0


def test_a_device_that_is_killed_has_what_was_applied_last(first: Applied) -> None:
    first.has(content(BOTH, tenant("d", device=LEFT)), "--wait")
    before = first.machine.device(LEFT)
    before.kill()
    code, told = first.apply(content(BOTH, tenant("d", device=LEFT), tenant("e", device=LEFT)))
    if code:  # it may be back already
        assert "the server of device 'left' is away" in told
    first.machine.server.until("it is back", lambda: first.machine.has_another(LEFT, before.pid))
    first.machine.server.until("d is there", lambda: first.devices("d") == [LEFT])
    assert first.machine.ask("d", "pids")[0] == 200, "ready, or asleep since e needed its memory"
    assert bool(first.devices("e")) == (not code)
    first.has(content(BOTH, tenant("e", device=LEFT)), "--wait")
    assert (first.devices("d"), first.devices("e")) == ([], [LEFT])
