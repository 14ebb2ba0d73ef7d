"""One command serves models of a hub: read, proposed, fetched and served, or
refused in one line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hub_user import AS_ITSELF, WEIGHTS, HubUser
from loopback_hub import loopback_hub
from model_folder import make_folder
from operated import Operated
from supervised import WITH_FAKES, Served, assert_gone, serving

from mirage.config import load
from mirage.tools.demo.models import make_models

pytestmark = pytest.mark.e2e

SMALL = ("--memory", "64MiB")
START_S = 900
AT_FIRST = 1310720
"""Bytes that an engine holds until it has obeyed an allotment."""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[HubUser]:
    with loopback_hub() as hub, TemporaryDirectory(prefix="t", dir="/tmp") as short:
        for name in ("org/one", "org/two"):
            folder = make_folder(tmp_path / "models" / name, max_position_embeddings=256)
            (folder / "tokenizer.json").write_text(json.dumps({"model": {}}))
            hub.add(name, folder)
        yield HubUser(hub, tmp_path, Path(short))


def error(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """The last line of a command that failed with exit code `code`."""
    assert done.returncode == code, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("mirage: error: ")
    return line


def test_names_alone_are_served(user: HubUser) -> None:
    config = user.folder / "none.yaml"
    with serving(
        config,
        *SMALL,
        named=["org/one", "org/two@main"],
        environment=user.environment,
    ) as served:
        models = served.request("GET", "/v1/models")[1]["data"]
        assert [one["id"] for one in models] == ["org/one", "org/two"]
        status, body = served.request(
            "POST", "/v1/completions", {"model": "org/one", "prompt": "x", "max_tokens": 2}
        )
        assert status == 200, body
        family = served.family()
        code, stderr = served.end(signal.SIGTERM)
    assert code == 0
    assert_gone(family)
    said = [line.removeprefix("mirage: ") for line in stderr.splitlines()]
    one, two = user.commit("org/one"), user.commit("org/two")
    begin = [line for line in said if line.startswith(("org/", "proposed: "))][:7]
    assert [line.split(",")[0] for line in begin] == [
        f"org/one: commit {one}",
        f"org/two: commit {two}",
        "proposed: device: 64.0 MiB of host memory",
        "proposed: org/one: share 50 %",
        "proposed: org/two: share 50 %",
        f"org/one@{one}: fetching 0.1 MiB into {user.folder / 'hf' / 'hub'}",
        f"org/two@{two}: fetching 0.1 MiB into {user.folder / 'hf' / 'hub'}",
    ]
    assert begin[3].endswith("requests of up to 256 tokens")


def test_what_is_written_is_what_would_be_served(user: HubUser) -> None:
    local = make_folder(user.folder / "local", max_position_embeddings=128)
    words = ("org/one", "local", *SMALL)
    done = user.mirage("serve", *words, "--write-config", "elsewhere.yaml")
    assert done.returncode == 0, done.stderr
    file = user.folder / "elsewhere.yaml"
    assert f"{file.name} has it: mirage serve {file.name} serves it" in done.stderr
    assert user.weights() == []  # no weights were fetched, and nothing was started
    config = load(file)
    commit = user.commit("org/one")
    assert [(t.name, str(t.model), t.max_model_len) for t in config.tenants] == [
        ("org/one", f"org/one@{commit}", 256),
        ("local", str(local.resolve()), 128),
    ]
    assert [round(tenant.percent, 1) for tenant in config.tenants] == [50, 50]
    again = user.mirage("serve", *words, "--write-config", file)
    assert f"{file}: it exists already: name another file" in error(again)
    table = user.mirage("check", "org/one", "local", "--memory", "64MiB").stdout
    assert table.splitlines()[-6:] == user.mirage("check", file).stdout.splitlines()[-6:]


def test_check_says_what_is_to_be_fetched_and_fetches_no_weights(user: HubUser) -> None:
    commit = user.commit("org/one")
    tenant = {"name": "a", "model": "org/one", "share": 50, "max_model_len": 128}
    file = user.folder / "c.yaml"
    file.write_text(yaml.safe_dump({"device": {"memory": "64MiB"}, "tenants": [tenant]}))
    done = user.mirage("check", file)
    assert done.returncode == 0, done.stderr
    first, heading = done.stdout.splitlines()[:2]
    cache = user.cache
    assert first == (
        f"org/one: commit {commit}, 0.1 MiB to fetch (1 of 1 files of weights) into {cache}"
    )
    assert heading.startswith("tenant")
    assert user.weights() == []
    assert not list(user.short.iterdir())
    fetch = user.mirage("fetch", file)
    assert fetch.stdout == f"{cache}/models--org--one/snapshots/{commit}\n"
    trusting = user.mirage("fetch", file, "--trust-remote-code", f"org/one@{commit}")
    assert "works only with models" in error(trusting)
    user.hub.asked.clear()
    again = user.mirage("check", file, HF_HUB_OFFLINE="1").stdout.splitlines()
    assert again[0] == f"org/one: commit {commit} is in the cache; HF_HUB_OFFLINE is set"
    assert again[1:] == done.stdout.splitlines()[1:]
    assert user.hub.asked == []


@pytest.mark.parametrize(
    ("command", "name", "words"),
    [
        (["serve", *SMALL], "org/none", "org/none: there is no such model at http"),
        (["check"], "org/one@v9", "org/one@v9: the hub has no such revision of it"),
        (["fetch"], "org/gated", "granted access (401): ask for it at"),
        (["serve"], "org/pickled", "it has no *.safetensors, only such as 'pytorch_model.bin'"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_line_and_nothing_starts(
    user: HubUser, command: list[str], name: str, words: str
) -> None:
    user.hub.add("org/gated", {"config.json": b"{}", WEIGHTS: b""})
    user.hub.gated = {"org/gated"}
    user.hub.add("org/pickled", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    first, *options = command
    done = user.mirage(first, name, *options)
    assert words in error(done) and len(done.stderr.splitlines()) == 1
    assert done.stdout == "" and not list(user.short.iterdir())


@pytest.mark.slow
def test_a_fetch_that_is_interrupted_goes_on_where_it_ended(user: HubUser) -> None:
    half = len(user.hub.repositories["org/one"]["main"].files[WEIGHTS]) // 2
    user.hub.ends_after = half
    user.hub.go_on.clear()
    command = [sys.executable, WITH_FAKES, "fetch", "org/one"]
    told = {**os.environ, **user.environment}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=told) as process:
        while [part.stat().st_size for part in user.cache.glob("*/blobs/*.part")] != [half]:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr
    user.hub.go_on.set()
    user.hub.ends_after = None
    user.hub.asked.clear()
    assert user.mirage("fetch", "org/one").returncode == 0
    ranges = [one.range for one in user.hub.asked if "/cdn/" in one.path]
    assert ranges == [f"bytes={half}-"]


# Code of a model.


def test_code_runs_by_name_and_commit_alone(user: HubUser) -> None:
    commit = user.commit("org/one")
    refused = user.mirage("check", "org/one", "--trust-remote-code", "org/one")
    assert "name a model that is served, with the commit whose code you have read" in error(refused)
    pinned = f"org/one@{commit}"
    words = ("serve", pinned, *SMALL, "--trust-remote-code", pinned, "--write-config", "c.yaml")
    assert user.mirage(*words).returncode == 0
    (tenant,) = load(user.folder / "c.yaml").tenants
    assert tenant.engine_args == {"trust_remote_code": True}
    told = yaml.safe_load((user.folder / "c.yaml").read_text())
    told["tenants"][0]["model"] = "org/one@main"
    (user.folder / "d.yaml").write_text(yaml.safe_dump(told))
    line = error(user.mirage("serve", "d.yaml"))
    assert "trust_remote_code runs code of org/one, and what 'main' names may change" in line


def test_code_of_another_repository_is_refused(user: HubUser) -> None:
    files = dict(user.hub.repositories["org/one"]["main"].files)
    told = json.loads(files["config.json"]) | {"auto_map": {"AutoModel": "org/other--x.Model"}}
    commit = user.hub.add("org/one", files | {"config.json": json.dumps(told).encode()})
    pinned = f"org/one@{commit}"
    done = user.mirage("check", pinned, "--trust-remote-code", pinned)
    assert "its code is of another repository (org/other)" in error(done)


# A server that runs.


def test_a_server_keeps_its_commit_and_fetches_nothing(user: HubUser) -> None:
    tenants = [
        {"name": name, "model": f"org/{name}", "share": 50, "max_model_len": 128}
        for name in ("one", "two")
    ]
    content = {"device": {"memory": "64MiB"}, "tenants": tenants[:1]}
    file = user.folder / "c.yaml"
    file.write_text(yaml.safe_dump(content))
    with serving(file, environment=user.environment) as served:
        operator = Operated(served, user.short)
        files = dict(user.hub.repositories["org/one"]["main"].files)
        user.hub.add("org/one", files | {"generation_config.json": b"{}"})
        done = operator.mirage("apply", "-f", "c.yaml")
        assert done.stdout == "nothing differs from what holds\n"
        file.write_text(yaml.safe_dump(content | {"tenants": tenants}))
        done = operator.mirage("apply", "-f", "c.yaml")
        assert "org/two: here nothing is fetched (mirage fetch org/two does)" in error(done)
        assert user.mirage("fetch", "org/two").returncode == 0
        assert "two: added" in operator.mirage("apply", "-f", "c.yaml").stdout
        tenants[0]["engine_args"] = {"trust_remote_code": True}
        file.write_text(yaml.safe_dump(content | {"tenants": tenants}))
        done = operator.mirage("apply", "-f", "c.yaml")
        assert "trust_remote_code runs code of org/one" in error(done)


def test_engines_that_are_left_keep_their_commit(user: HubUser) -> None:
    tenant = {"name": "one", "model": "org/one", "share": 50, "max_model_len": 128}
    file = user.folder / "c.yaml"
    file.write_text(yaml.safe_dump({"device": {"memory": "64MiB"}, "tenants": [tenant]}))
    with serving(file, environment=user.environment, lease_s=300) as first:
        first.drain()
        first.until("its engine has memory", lambda: held(first) > AT_FIRST)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    files = dict(user.hub.repositories["org/one"]["main"].files)
    user.hub.add("org/one", files | {"generation_config.json": b"{}"})
    user.hub.asked.clear()
    with serving(file, environment=user.environment, lease_s=300) as second:
        assert user.hub.asked == []
        done = Operated(second, user.short).mirage("apply", "-f", "c.yaml")
        assert done.stdout == "nothing differs from what holds\n"
        code, stderr = second.end(signal.SIGTERM)
    assert code == 0 and f"adopted from process {first.process.pid}: one" in stderr, stderr


def held(served: Served) -> int:
    """Bytes of device memory that the engine of tenant `one` holds."""
    told = served.request("GET", "/mirage/state")[1].get("tenants", {})
    return int(told.get("one", {}).get("held_bytes", 0))


# With vLLM's engines.


@pytest.mark.slow
def test_a_real_engine_serves_a_model_of_a_hub_by_its_name(user: HubUser) -> None:
    (model,) = make_models(user.folder / "made", which=["llama"], layers=4).values()
    user.hub.add("org/llama", model)
    with serving(
        user.folder / "none.yaml",
        "--memory",
        "64MiB",
        named=["org/llama"],
        program=AS_ITSELF,
        environment=user.environment,
        ready_timeout_s=START_S,
    ) as served:
        body = {"model": "org/llama", "prompt": "Hello", "max_tokens": 4, "temperature": 0}
        status, answer = served.request("POST", "/v1/completions", body)
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] == 4
        family = served.family()
        assert served.end(signal.SIGTERM)[0] == 0
    assert_gone(family)
