"""Tenants that are declared while a server runs, by the admin socket and by commands."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_folder import make_adapter
from operated import Operated, content, operated, tenant
from short_folders import short_of_module  # noqa: F401

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Iterator[Operated]:
    with operated(tmp_path_factory.mktemp("s"), short, content("a", "b")) as running:
        yield running


@pytest.fixture
def two(site: Operated) -> Operated:
    """The server with tenants a and b in their first configuration."""
    site.apply(content("a", "b"))
    site.until(lambda: site.names() == ["a", "b"])
    return site


# -- adding, removing, changing ----------------------------------------------------------


def test_a_tenant_is_added_and_removed(two: Operated) -> None:
    told = two.apply(content("a", "b", "c"))
    assert (told["applied"], told["added"], told["removed"]) == (True, ["c"], [])
    assert two.complete("c")[0] == 200
    listed = two.server.request("GET", "/v1/models")[1]["data"]
    assert [card["id"] for card in listed] == ["a", "b", "c"]
    assert 'mirage_http_requests_total{code="200",tenant="c"} 1.0' in metrics(two)
    log = Path(two.ask("GET", "/tenants/c")[1]["log"])
    assert log.exists()
    told = two.apply(content("a", "b"))
    assert told["removed"] == ["c"] and told["awaited"] == {"c": "absent"}
    status, body = two.complete("c")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    two.until(lambda: two.names() == ["a", "b"])
    two.until(lambda: 'tenant="c"' not in metrics(two))
    assert not log.exists()
    assert set(two.server.request("GET", "/health")[1]["tenants"]) == {"a", "b"}
    assert two.ask("GET", "/tenants/c")[0] == 404


def metrics(site: Operated) -> str:
    return bytes(site.server.request("GET", "/metrics")[1]).decode()


def test_an_unchanged_file_starts_and_stops_nothing(two: Operated) -> None:
    before = two.complete("a")[1]
    told = two.apply(content("a", "b"))
    assert not told["applied"] and told["lines"] == ["nothing differs from what holds"]
    assert two.ask("GET", "/tenants")[1]["revision"] == told["revision"]
    assert two.complete("a")[1] == before


def test_keys_hold_at_once_or_with_the_next_engine(two: Operated) -> None:
    before = two.complete("a")[1]
    changed = content("a", "b")
    changed["tenants"][0] |= {"keep_alive": "5m", "priority": 3}
    told = two.apply(changed)
    assert told["changed"] == [{"name": "a", "at_once": ["priority", "keep_alive"], "restart": []}]
    assert two.complete("a")[1] == before
    spec = two.ask("GET", "/tenants/a")[1]["spec"]
    assert (spec["keep_alive_s"], spec["priority"]) == (300.0, 3)
    changed["tenants"][0] |= {"share": 50}
    told = two.apply(changed)
    assert told["changed"][0]["restart"] == ["share"] and told["awaited"] == {"a": "ready"}
    two.until(lambda: two.state("a") == "ready")
    after = two.complete("a")[1]
    assert after["core"] != before["core"]
    assert two.ask("GET", "/tenants/a")[1]["share_bytes"] == 2 << 20


ALIAS = "team/gpt:4o"


def with_aliases(a: list[str], b: list[str]) -> dict[str, Any]:
    told = content("a", "b")
    told["tenants"] = [tenant("a", aliases=a), tenant("b", aliases=b)]
    return told


def test_aliases_hold_at_once_on_both_sides(two: Operated) -> None:
    at_first = {name: two.complete(name)[1] for name in ("a", "b")}
    told = two.apply(with_aliases([ALIAS], ["x"]))
    assert told["changed"] == [
        {"name": name, "at_once": ["aliases"], "restart": []} for name in ("a", "b")
    ]
    assert (two.complete(ALIAS)[1], two.complete("x")[1]) == (at_first["a"], at_first["b"])
    status = two.ask("GET", f"/tenants/{ALIAS}")[1]
    assert (status["name"], status["spec"]["aliases"]) == ("a", [ALIAS])
    assert f"aliases {ALIAS}, start" in two.mirage("tenants", "show", ALIAS).stdout
    assert two.ask("POST", f"/tenants/{ALIAS}/restart")[1]["tenant"] == "a"
    assert "no tenant" in str(two.ask("DELETE", f"/tenants/{ALIAS}")[1])
    refused = two.ask("PUT", "/config", with_aliases([ALIAS], [ALIAS]))
    assert refused[0] == 400 and "names must differ" in str(refused[1])
    two.apply(with_aliases([], [ALIAS]))
    assert (two.complete(ALIAS)[1], two.complete("x")[0]) == (at_first["b"], 404)
    done = two.mirage("tenants", "set", "b", f"aliases=[x, {ALIAS}]")
    assert done.returncode == 0, done.stderr
    assert two.complete("x")[1] == at_first["b"]


def test_an_alias_that_an_adapter_has_is_refused_at_once_too(two: Operated) -> None:
    make_adapter(two.server.config.parent / "adapter")
    lora = {"enable_lora": True, "lora_modules": ["x:1=adapter"]}
    told = content() | {"tenants": [tenant("a", engine_args=lora), tenant("b")]}
    two.apply(told)
    told["tenants"][1] |= {"aliases": ["x:1"]}
    status, body, _ = two.ask("PUT", "/config", told)
    words = "tenant 'a': adapter 'x:1' has the name of an alias of tenant 'b': rename it"
    assert (status, body["error"]["message"]) == (400, words)


def test_a_dry_run_says_what_would_follow_and_changes_nothing(two: Operated) -> None:
    assert two.complete("a")[0] == two.complete("b")[0] == 200
    wanted = content("a", "b")
    wanted["tenants"] += [tenant("c", start="eager"), tenant("d")]
    wanted["tenants"][0]["priority"] = 9
    told = two.apply(wanted, "dry_run=1")
    assert not told["applied"] and told["added"] == ["c", "d"]
    outlook = {one["name"]: one for one in told["fitting"]}
    assert outlook["c"]["spare_bytes"] < 0 and set(outlook["c"]["yields"]) <= {"a", "b"}
    assert "would be added" in told["lines"][0] and "would yield now" in told["lines"][0]
    assert two.names() == ["a", "b"]


def test_requests_of_a_removed_tenant_end(two: Operated) -> None:
    two.apply(content("a", "b", "c"))
    assert two.complete("c")[0] == 200
    connection = two.server.open("POST", "/v1/completions", {"model": "c", "prompt": "wait"})
    two.until(lambda: two.ask("GET", "/tenants/c")[1]["running"])
    two.apply(content("a", "b"), "drain_s=20")
    assert connection.getresponse().status == 200
    two.until(lambda: two.names() == ["a", "b"])
    two.apply(content("a", "b", "c"))
    assert two.complete("c")[0] == 200


def test_requests_that_wait_for_a_removed_tenant_are_told(two: Operated) -> None:
    two.apply(content("a", "b", "c"))
    connection = two.server.open("POST", "/v1/completions", {"model": "c", "prompt": "silent"})
    two.until(lambda: two.state("c") == "starting")
    two.apply(content("a", "b"))
    answer = connection.getresponse()
    assert answer.status == 404 and "no model 'c' here" in answer.read().decode()


def test_a_name_comes_again_while_it_goes(two: Operated) -> None:
    two.apply(content("a", "b", "c"))
    first = two.complete("c")[1]
    connection = two.server.open("POST", "/v1/completions", {"model": "c", "prompt": "wait"})
    two.until(lambda: two.ask("GET", "/tenants/c")[1]["running"])
    two.apply(content("a", "b"), "drain_s=20")
    two.apply(content("a", "b", "c"))
    assert connection.getresponse().status == 200
    assert two.complete("c")[1]["core"] != first["core"]
    assert two.names() == ["a", "b", "c"]


# -- what is refused ---------------------------------------------------------------------


def test_a_stale_revision_changes_nothing(two: Operated) -> None:
    tag = two.ask("GET", "/config")[2]["ETag"]
    two.apply(content("a", "b", "c"), **{"If-Match": tag})
    status, body, _ = two.ask("PUT", "/config", content("a"), **{"If-Match": tag})
    assert status == 412 and "look again" in body["error"]["message"]
    assert two.names() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "broken",
    [
        content("a", "b") | {"tenants": [tenant("a", colour="red")]},
        content("a", "b") | {"tenants": []},
        content() | {"tenants": [tenant("a", model="nowhere")]},
        content() | {"tenants": [tenant("a", share=1)]},
        content() | {"tenants": [tenant("a", aliases=["b"]), tenant("b")]},
    ],
)
def test_an_invalid_file_is_refused_in_the_line_of_check(two: Operated, broken: Any) -> None:
    file = two.server.config.parent / "broken.yaml"
    file.write_text(yaml.safe_dump(broken))
    checked = two.mirage("check", "broken.yaml").stderr.splitlines()[-1:]
    done = two.mirage("apply", "-f", "broken.yaml")
    assert done.returncode == 2 and done.stderr.splitlines() == checked
    assert two.names() == ["a", "b"]


def test_keys_that_cannot_change_are_named(two: Operated) -> None:
    wanted = content("a", "b", device={"memory": "5MiB"}, policy="static")
    status, body, _ = two.ask("PUT", "/config", wanted)
    assert status == 409 and body["error"]["message"].startswith("device.memory, policy cannot")


def test_without_a_roster_tenants_are_added_and_yield(tmp_path: Path) -> None:
    plain = content("a", "b")
    del plain["roster"]
    for one in plain["tenants"]:
        del one["start"]
        one["share"] = 32
    with (
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder,
        operated(tmp_path / "s", Path(folder), plain) as site,
    ):
        before = {name: site.complete(name)[1] for name in "ab"}
        assert not site.apply(plain)["applied"]
        plain["tenants"].append(tenant("c", share=32))
        assert site.apply(plain)["added"] == ["c"] and site.complete("c")[0] == 200
        assert {name: site.complete(name)[1] for name in "ab"} == before
        plain["tenants"].append(tenant("d"))
        assert site.apply(plain)["roster"] == [] and site.complete("d")[0] == 200
        assert "sleeping" in {site.state(name) for name in "abc"}
        assert {name: site.complete(name)[1] for name in "ab"} == before, "no engine started anew"
        plain["tenants"] = plain["tenants"][:2]
        assert site.apply(plain)["removed"] == ["c", "d"]
        site.until(lambda: site.names() == ["a", "b"])


def test_without_a_roster_an_operator_lets_a_tenant_sleep(tmp_path: Path) -> None:
    plain = {key: value for key, value in content("a", "b").items() if key != "roster"}
    for one in plain["tenants"]:
        del one["start"]
    with (
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder,
        operated(tmp_path / "s", Path(folder), plain) as site,
    ):
        before = site.complete("a")[1]
        assert site.ask("POST", "/tenants/a/sleep")[0] == 202
        site.until(lambda: site.state("a") == "sleeping")
        health = site.server.request("GET", "/health")
        assert (health[0], health[1]["status"]) == (200, "ok")
        assert site.complete("a") == (200, before)
        assert site.ask("POST", "/tenants/b/stop")[0] == 202
        site.until(lambda: site.state("b") == "stopped")
        assert site.complete("b")[0] == 200


# -- commands ----------------------------------------------------------------------------


def test_commands_apply_set_and_remove(two: Operated) -> None:
    file = two.server.config.parent / "other.yaml"
    wanted = content("a", "b")
    wanted["tenants"].append(tenant("c", start="eager"))
    file.write_text(yaml.safe_dump(wanted))
    done = two.mirage("apply", "-f", "other.yaml", "--dry-run")
    assert done.returncode == 0 and done.stdout.startswith("c: would be added; it takes 1.6 MiB")
    done = two.mirage("apply", "-f", "other.yaml", "--wait")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "c is ready", done.stderr
    done = two.mirage("tenants", "set", "c", "priority=2", "engine_args.seed=4", "--wait")
    assert done.returncode == 0 and "priority at once; engine_args.seed with its" in done.stdout
    assert done.stdout.splitlines()[-1] == "c is ready"
    written = two.ask("GET", "/config")[1]["configuration"]["tenants"][2]
    assert (written["priority"], written["engine_args"]) == (2, {"seed": 4})
    done = two.mirage("tenants", "remove", "c", "--wait")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "c is absent"
    assert two.names() == ["a", "b"]


@contextmanager
def waiting_for(two: Operated, act: str) -> Iterator[Future[Any]]:
    """Future of a command that waits for `act` on tenant `b`, which drains because a request does
    not end.
    """
    two.complete("b")
    body = {"model": "b", "prompt": "hang"}
    with closing(two.server.open("POST", "/v1/completions", body)), ThreadPoolExecutor() as pool:
        two.until(lambda: two.ask("GET", "/tenants/b")[1]["running"])
        waiting = pool.submit(two.mirage, "tenants", act, "b", "--drain", "60", "--wait")
        two.until(lambda: two.state("b") == "draining")
        yield waiting


def test_nobody_waits_for_one_that_was_removed_meanwhile(two: Operated) -> None:
    with waiting_for(two, "restart") as waiting:
        assert two.ask("DELETE", "/tenants/b?drain_s=0")[0] == 200
        done = waiting.result()
    assert done.returncode == 1 and done.stderr == "mirage: error: b was removed meanwhile\n"


def test_nobody_waits_for_one_that_is_told_otherwise_meanwhile(two: Operated) -> None:
    with waiting_for(two, "restart") as waiting:
        assert two.ask("POST", "/tenants/b/wake")[0] == 202
        assert two.ask("POST", "/tenants/b/stop?drain_s=0")[0] == 202
        done = waiting.result()
    told = "b was told to stop meanwhile, by another command: it was not ready before"
    assert done.returncode == 1 and done.stderr == f"mirage: error: {told}\n"


def test_nobody_waits_for_the_end_of_one_that_was_added_again(two: Operated) -> None:
    with waiting_for(two, "remove") as waiting:
        two.apply(content("a", "b"))
        done = waiting.result()
        assert two.state("b") == "draining"
    assert done.returncode == 1 and done.stderr == "mirage: error: b was added again meanwhile\n"


def test_what_a_client_that_left_has_asked_for_is_done_and_told(two: Operated) -> None:
    address = two.address
    body = json.dumps(content("a", "b", "later"))
    for missing in (0, 1):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(address))
            length = f"Content-Length: {len(body) + missing}"
            head = f"PUT /config HTTP/1.1\r\nHost: admin\r\n{length}\r\nExpect: 100-continue"
            client.sendall(f"{head}\r\n\r\n".encode())
            assert b"100" in client.recv(100)
            client.sendall(body.encode())

    def told(result: str) -> bool:
        start = f"uid={os.getuid()} pid={os.getpid()} act=apply tenant=- result={result}"
        return any(start in line for line in two.server.log)

    two.until(lambda: told("200 later: added"))
    two.until(lambda: told("400 the client went away before all was sent"))
    assert two.names() == ["a", "b", "later"]


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("tenants", "remove", "x"), 2, "no tenant 'x' here: use one of a, b"),
        (("tenants", "set", "a"), 2, "set needs keys: write KEY=VALUE"),
        (("tenants", "set", "a", "priority"), 2, "'priority' is no KEY=VALUE"),
        (("tenants", "set", "a", "priority=high"), 2, "priority"),
        (("tenants", "wake", "a", "priority=1"), 2, "wake takes no 'priority=1'"),
        (("apply", "-f", "nowhere.yaml"), 2, "nowhere.yaml: cannot be read"),
    ],
)
def test_commands_refuse_in_one_line(
    two: Operated, words: tuple[str, ...], code: int, line: str
) -> None:
    done = two.mirage(*words)
    assert done.returncode == code and line in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_each_act_is_a_line_of_the_log(two: Operated) -> None:
    two.ask("PATCH", "/tenants/a", {"priority": 4})
    two.ask("DELETE", "/tenants/nobody")
    two.until(lambda: any("act=remove tenant=nobody result=404" in x for x in two.server.log))
    assert any(
        f"uid={os.getuid()} " in x and "act=set tenant=a result=200 a: changed, priority" in x
        for x in two.server.log
    )
