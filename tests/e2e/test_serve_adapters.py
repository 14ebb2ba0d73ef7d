"""Adapters that are declared, loaded, replaced and removed while fake engines run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_folder import make_adapter
from operated import Operated, around, content, operated, tenant
from short_folders import short_of_module  # noqa: F401
from supervised import Served, serving, write_config

pytestmark = pytest.mark.e2e

LORA = {"enable_lora": True}
LEASE_S = 300.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Iterator[Operated]:
    folder = tmp_path_factory.mktemp("s")
    make_adapters(folder)
    with operated(folder, short, told()) as running:
        yield running


@pytest.fixture
def up(site: Operated) -> Operated:
    """The server, with tenants a and b that have no adapters, and with whole
    folders of adapters.
    """
    folder = site.server.config.parent
    shutil.rmtree(folder / "lora")
    make_adapters(folder)
    site.apply(told())
    for name in "ab":
        assert site.complete(name)[0] == 200
    return site


def make_adapters(folder: Path) -> None:
    make_adapter(folder / "lora" / "one")
    make_adapter(folder / "lora" / "two", lora_alpha=17)
    make_adapter(folder / "lora" / "bad", task_type="bad")
    make_adapter(folder / "lora" / "slow", task_type="slow")
    make_adapter(folder / "elsewhere")


def told(**adapters: str) -> dict[str, Any]:
    """Content of a configuration in which tenant a has these adapters, each in a folder below
    `lora`.
    """
    named = {name: f"lora/{folder}" for name, folder in adapters.items()}
    tenants = [tenant("a", engine_args=LORA, adapters=named), tenant("b")]
    return content() | {"tenants": tenants, "adapter_folders": ["lora"]}


def cards(site: Operated) -> dict[str, dict[str, Any]]:
    return {card["id"]: card for card in site.server.request("GET", "/v1/models")[1]["data"]}


def loaded(site: Operated, name: str) -> str:
    """Folder of the adapter's copy with which an engine answers a request for the
    adapter `name`.
    """
    status, answer = site.complete(name)
    assert status == 200, answer
    assert answer["model"] == name, "its client's name, not the engine's"
    return str(answer["adapter"])


def status_of(site: Operated) -> dict[str, tuple[str, str]]:
    adapters = site.ask("GET", "/tenants/a")[1]["adapters"]
    return {one["name"]: (one["state"], one["reason"]) for one in adapters}


def metrics(site: Operated) -> str:
    return bytes(site.server.request("GET", "/metrics")[1]).decode()


# -- coming and going --------------------------------------------------------------------


def test_an_adapter_comes_and_goes_and_no_engine_starts_anew(up: Operated) -> None:
    before = {name: up.complete(name)[1] for name in "ab"}
    answer = up.apply(told(x="one"))
    assert answer["changed"] == [{"name": "a", "at_once": ["adapters.x"], "restart": []}]
    copy = Path(loaded(up, "x"))
    where = up.server.config.parent / "lora" / "one"
    name = "adapter_config.json"
    assert copy.parent != where and (copy / name).read_bytes() == (where / name).read_bytes()
    assert (cards(up)["x"]["parent"], cards(up)["x"]["root"]) == ("a", str(where))
    assert status_of(up) == {"x": ("loaded", "")}
    up.until(lambda: 'mirage_adapter_loaded{adapter="x",tenant="a"} 1.0' in metrics(up))
    state = up.server.request("GET", "/mirage/state")[1]["engines"]
    assert state["a"]["adapters"] == {"x": "loaded"} and "adapters" not in state["b"]
    up.apply(told())
    status, body = up.complete("x")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert [*cards(up)] == ["a", "b"]
    up.until(lambda: "adapter=" not in metrics(up))
    assert {name: up.complete(name)[1] for name in "ab"} == before


def test_requests_that_run_end_with_the_adapter_that_is_let_go(up: Operated) -> None:
    up.apply(told(x="one"))
    connection = up.server.open("POST", "/v1/completions", {"model": "x", "prompt": "wait"})
    up.until(lambda: up.ask("GET", "/tenants/a")[1]["running"])
    up.apply(told())
    assert up.complete("x")[0] == 404
    answer = connection.getresponse()
    assert answer.status == 200 and json.loads(answer.read())["model"] == "x"


def test_another_folder_or_other_files_are_another_adapter(up: Operated) -> None:
    up.apply(told(x="one"))
    first = loaded(up, "x")
    up.apply(told(x="two"))
    second = loaded(up, "x")
    assert second != first and cards(up)["x"]["root"].endswith("lora/two")
    up.apply(told())
    make_adapter(up.server.config.parent / "lora" / "two", lora_alpha=18)
    up.apply(told(x="two"))
    assert loaded(up, "x") not in (first, second)
    up.apply(told(x="one"))
    assert loaded(up, "x") == first, "what it was before"


@pytest.mark.slow
def test_requests_find_one_or_the_other_while_an_adapter_is_replaced(up: Operated) -> None:
    up.apply(told(x="one"))
    first, seen = loaded(up, "x"), set()
    for folder in ("slow", "two", "slow", "one"):
        with up.applying(told(x=folder)) as applied:
            while not applied.done():
                seen.add(loaded(up, "x"))
            assert applied.result()["applied"]
    assert first in seen and len(seen) <= 3


def test_names_of_adapters_may_have_dots_and_colons(up: Operated) -> None:
    done = up.mirage("tenants", "set", "a", 'adapters={"llama3.2:tuned": lora/one}')
    assert done.returncode == 0, done.stderr
    assert loaded(up, "llama3.2:tuned")
    done = up.mirage("tenants", "set", "a", "adapters.y=lora/two")
    assert done.returncode == 0, done.stderr
    assert loaded(up, "y") and loaded(up, "llama3.2:tuned")
    shown = up.mirage("tenants", "show", "a").stdout
    where = up.server.config.parent / "lora" / "two"
    assert f"adapter   y, loaded, {where}" in shown
    done = up.mirage("tenants", "set", "a", "adapters=")
    assert done.returncode == 0 and [*cards(up)] == ["a", "b"]


def test_a_dry_run_loads_nothing(up: Operated) -> None:
    assert "adapters.x at once" in up.apply(told(x="one"), "dry_run=1")["lines"][0]
    assert up.complete("x")[0] == 404 and status_of(up) == {}


# -- what cannot be ----------------------------------------------------------------------


def test_one_that_cannot_be_loaded_is_told_and_its_tenant_serves(up: Operated) -> None:
    before = up.complete("a")[1]
    answer = up.apply(told(x="bad", y="one"))
    assert answer["lines"][-1] == "a: adapter 'x' is not loaded: it is bad"
    assert status_of(up) == {"x": ("failed", "it is bad"), "y": ("loaded", "")}
    assert up.complete("x")[0] == 404 and loaded(up, "y")
    assert up.state("a") == "ready" and up.complete("a")[1] == before
    assert 'mirage_adapter_load_failures_total{tenant="a"}' in metrics(up)
    up.apply(told(y="bad"))
    assert status_of(up)["y"] == ("failed", "it is bad")
    assert loaded(up, "y") and cards(up)["y"]["root"].endswith("lora/one"), "the one before"
    up.apply(told(x="two", y="two"))
    assert loaded(up, "x") and status_of(up)["y"] == ("loaded", "")


def test_what_may_not_be_loaded_is_refused_in_the_line_of_check(up: Operated) -> None:
    file = up.server.config.parent / "broken.yaml"
    for adapters in ({"x": "elsewhere"}, {"x": "lora/nothing"}, {"b": "lora/one"}):
        broken = told()
        broken["tenants"][0]["adapters"] = adapters
        file.write_text(yaml.safe_dump(broken))
        checked = up.mirage("check", "broken.yaml").stderr.splitlines()[-1:]
        done = up.mirage("apply", "-f", "broken.yaml")
        assert done.returncode == 2 and done.stderr.splitlines() == checked
        assert "adapter" in checked[0]
    assert [*cards(up)] == ["a", "b"]
    status, body, _ = up.ask("PUT", "/config", told() | {"adapter_folders": ["lora", "elsewhere"]})
    assert status == 409 and body["error"]["message"].startswith("adapter_folders cannot change")


def test_clients_load_nothing_and_are_told_who_does(up: Operated) -> None:
    body = {"lora_name": "x", "lora_path": str(up.server.config.parent / "lora" / "one")}
    for route in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        status, answer = up.server.request("POST", route, body)
        assert status == 404 and "mirage tenants set" in answer["error"]["message"]


def test_check_says_what_engines_load(up: Operated) -> None:
    file = up.server.config.parent / "good.yaml"
    file.write_text(yaml.safe_dump(told(x="one")))
    assert (
        "a: its engine loads adapter x when it has started" in up.mirage("check", file.name).stdout
    )


# -- engines that end --------------------------------------------------------------------


def test_a_new_engine_has_what_is_declared_though_its_folder_is_gone(up: Operated) -> None:
    up.apply(told(x="one", y="bad"))
    before, copy = up.complete("a")[1], loaded(up, "x")
    shutil.rmtree(up.server.config.parent / "lora" / "one")
    os.kill(before["core"], signal.SIGKILL)
    up.until(lambda: up.state("a") != "ready")
    up.until(lambda: up.state("a") == "ready")
    assert loaded(up, "x") == copy and up.complete("a")[1]["core"] != before["core"]
    assert status_of(up)["y"] == ("failed", "it is bad")
    up.apply(told())


def test_a_request_for_an_adapter_starts_its_tenant(up: Operated) -> None:
    up.apply(told(x="one", y="bad"))
    up.ask("POST", "/tenants/a/stop")
    up.until(lambda: up.state("a") == "stopped")
    assert "x" in cards(up) and "y" not in cards(up)
    assert status_of(up)["x"] == ("waiting", "")
    up.apply(told(x="two", z="bad"))
    assert [name for name in cards(up) if name in "xyz"] == ["x", "z"], "nobody has tried z"
    assert loaded(up, "x") and cards(up)["x"]["root"].endswith("lora/two")
    assert up.complete("z")[0] == 404


def test_a_request_that_waited_for_an_adapter_in_vain_is_told(up: Operated) -> None:
    up.apply(told())
    up.ask("POST", "/tenants/a/stop")
    up.until(lambda: up.state("a") == "stopped")
    up.apply(told(z="bad"))
    status, body = up.complete("z")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert up.state("a") == "ready"


def test_copies_go_with_their_tenant(up: Operated) -> None:
    up.apply(told(x="one"))
    copy = Path(loaded(up, "x"))
    assert copy.is_dir()
    up.apply(told() | {"tenants": [tenant("b")]})
    up.until(lambda: up.names() == ["b"])
    assert not copy.parent.exists()


# -- another supervisor ------------------------------------------------------------------


def test_another_supervisor_has_the_adapters_of_one_that_was_killed(
    tmp_path: Path, short: Path
) -> None:
    make_adapters(tmp_path)
    config = write_config(tmp_path, "a")
    content = told(x="one", y="two")
    for one in content["tenants"]:
        one["start"] = "eager"
    config.write_text(yaml.safe_dump(content))
    with outliving(config, short) as first:
        first.until("it has memory", lambda: has_memory(first))
        before = {name: answer(first, name) for name in ("a", "x", "y")}
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    shutil.rmtree(tmp_path / "lora" / "one")
    with outliving(config, short) as second:
        second.until("x is known", lambda: answer(second, "x")[0] == 200)
        assert {name: answer(second, name) for name in ("a", "x", "y")} == before
        state = second.request("GET", "/mirage/state")[1]["engines"]["a"]
        assert state["adopted"] and state["adapters"] == {"x": "loaded", "y": "loaded"}
        assert second.end(signal.SIGTERM)[0] == 0


@contextmanager
def outliving(config: Path, short: Path) -> Iterator[Served]:
    """While the block runs, run a server whose engines would outlive it. If the test fails, it and
    all engines are ended.
    """
    with serving(config, environment=around(short), lease_s=LEASE_S) as server:
        server.drain()
        try:
            yield server
        except BaseException:
            print("".join(server.log))
            server.process.kill()
            server.process.wait()
            Operated(server, short).mirage("stop")
            raise


def has_memory(server: Served) -> bool:
    """True once both engines have obeyed an allotment. An engine that has none
    cannot be adopted.
    """
    told = server.request("GET", "/mirage/state")[1].get("tenants", {})
    return len(told) == 2 and all(one["held_bytes"] > 1310720 for one in told.values())


def answer(server: Served, name: str) -> tuple[int, Any]:
    return server.request("POST", "/v1/completions", {"model": name, "prompt": "pids"})
