"""The command line and the environment of one tenant's engine, by the device it computes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from mirage.arguments.check import ArgumentRefused
from mirage.arguments.rules import Verdict
from mirage.arguments.variables import ENVIRONMENT
from mirage.config import Config, ConfigError
from mirage.engine_settings import from_vllm
from mirage.serve.fit.fit import Fit
from mirage.serve.fit.page_size import PageSize
from mirage.serve.launch import launcher
from mirage.serve.launch.launcher import (
    CAREFUL,
    NO_DOMAIN,
    check_engine_args,
    command,
    engine_settings,
    environment,
)

pytestmark = pytest.mark.pure
FIT = Fit(
    page=PageSize(1 << 16),
    grant_bytes=1 << 30,
    layers=8,
    layer_bytes=1 << 24,
    fixed_bytes=1 << 20,
    block_bytes=1 << 18,
    extent_blocks=8,
    base_blocks=64,
    max_blocks=256,
    min_blocks=8,
    movable_layers=7,
)


def config(**device: Any) -> Config:
    tenant = {"name": "a", "model": "/models/a", "share": 50}
    return Config.model_validate({"device": {"memory": "8GiB"} | device, "tenants": [tenant]})


@pytest.mark.parametrize(
    ("sharing", "held"),
    [
        ({}, 1.0),
        ({"mode": "temporal", "turn_s": 1.0}, 0.25),
        ({"mode": "temporal", "turn_s": 60.0}, 1.0),
    ],
)
def test_nobody_is_held_for_a_whole_turn(sharing: dict[str, Any], held: float) -> None:
    """The time for which a request that lacks memory may be held (`hold_s`) is at most a quarter of
    a turn. Otherwise engines that lack one block each would wait through turn after turn.
    """
    raw = config().model_dump() | {"sharing": sharing}
    settings = json.loads(words(Config.model_validate(raw))["--additional-config"])["mirage"]
    assert settings["hold_s"] == held


@pytest.mark.parametrize(
    ("policy", "control", "path"),
    [
        ("mirage", Path("/run/control.sock"), "/run/tiers.sock"),
        ("pooled", Path("/run/control.sock"), "/run/tiers.sock"),
        ("mirage", None, None),
        ("static", Path("/run/control.sock"), None),
    ],
)
def test_an_engine_is_told_where_the_host_pool_is_if_it_is_to_use_it(
    policy: str, control: Path | None, path: str | None
) -> None:
    raw = config().model_dump() | {"tiers": {"host": {"bytes": "1GiB"}}, "policy": policy}
    made = Config.model_validate(raw)
    assert engine_settings(made, made.tenants[0], FIT, control).tier_socket == path
    without = Config.model_validate(raw | {"tiers": {}})
    assert engine_settings(without, without.tenants[0], FIT, control).tier_socket is None


def test_an_engine_is_told_of_the_adapters_that_it_serves() -> None:
    raw = config().model_dump()
    raw["tenants"][0]["engine_args"] = {"enable_lora": True, "lora_modules": ["one=/a", "two=/b"]}
    made = Config.model_validate(raw)
    assert engine_settings(made, made.tenants[0], FIT, None).adapters == (Path("/a"), Path("/b"))


def test_an_engine_reads_the_settings_that_it_was_given() -> None:
    made = config()
    raw = json.loads(words(made)["--additional-config"])
    given = engine_settings(made, made.tenants[0], FIT, None)
    assert from_vllm(SimpleNamespace(additional_config=raw)) == given


def test_settings_that_are_missing_or_unknown_are_refused() -> None:
    raw = json.loads(words(config())["--additional-config"])["mirage"]
    moves = raw.pop("moves")
    for wrong in (raw, raw | {"moves": moves, "moved": moves}):
        with pytest.raises(ValueError, match=r"additional-config mirage: .*move"):
            from_vllm(SimpleNamespace(additional_config={"mirage": wrong}))


@pytest.mark.parametrize("movable", [7, 0])
def test_an_engine_is_told_if_its_layers_stay(movable: int) -> None:
    said = words(config(), replace(FIT, movable_layers=movable))
    settings = json.loads(said["--additional-config"])["mirage"]
    assert settings["moves"] is (movable > 0)


def words(made: Config, fit: Fit = FIT) -> dict[str, str]:
    """Options of the engine's command line with their values; an option without a value has ""."""
    line = command(made, made.tenants[0], fit, Path("/run/a.sock"), None)
    pairs = zip(line, [*line[1:], "--"], strict=True)
    return {
        word: "" if after.startswith("--") else after
        for word, after in pairs
        if word.startswith("--")
    }


def variables(made: Config) -> dict[str, str]:
    folders = {name: Path("/run") / name for name in ("temporary", "cache", "rpc")}
    return environment(made, SimpleNamespace(**folders))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "VLLM_USE_BREAKABLE_CUDAGRAPH"):
        monkeypatch.delenv(name, raising=False)


def test_on_a_host_engines_step_eagerly_on_one_core_each() -> None:
    said = words(config())
    assert said["--worker-cls"] == "mirage.engine.cpu_worker.MirageCPUWorker"
    assert "--enforce-eager" in said and "--gpu-memory-utilization" not in said
    assert variables(config())["OMP_NUM_THREADS"] == "1"
    assert json.loads(said["--additional-config"])["mirage"]["device"] == "host"


@pytest.mark.parametrize("graphs", [False, True])
def test_on_a_gpu_graphs_are_a_matter_of_the_configuration(graphs: bool) -> None:
    said = words(config(kind="cuda", graphs=graphs, compile=False))
    assert said["--worker-cls"] == "mirage.engine.gpu_worker.MirageGPUWorker"
    assert ("--enforce-eager" in said) is not graphs
    if graphs:
        how = json.loads(said["--compilation-config"])
        assert how == {"mode": 0, "cudagraph_mode": "FULL_AND_PIECEWISE"}
    assert float(said["--gpu-memory-utilization"]) < 0.05
    settings = json.loads(said["--additional-config"])["mirage"]
    assert (settings["device"], settings["page"]) == ("cuda", FIT.page.bytes)
    assert settings["pieces"] is graphs
    made = variables(config(kind="cuda", graphs=graphs, compile=False))
    breakable = made.get("VLLM_USE_BREAKABLE_CUDAGRAPH")
    assert breakable == ("1" if graphs else None)


@pytest.mark.parametrize("there", [False, True])
def test_vllm_samples_without_flashinfer_where_it_is_not_installed(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "VLLM_USE_FLASHINFER_SAMPLER"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launcher, "find_spec", lambda _: object() if there else None)
    assert variables(config(kind="cuda")).get(name) == (None if there else "0")
    assert name not in variables(config())
    monkeypatch.setenv(name, "1")
    assert variables(config(kind="cuda"))[name] == "1"


def test_what_is_said_to_be_set_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher sets exactly the environment variables that our table marks as ours. All others
    that vLLM reads keep their values.
    """
    before = dict.fromkeys(ENVIRONMENT, "7")
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    made = variables(config(kind="cuda", index=0, compile=True))
    ours = {name for name, rule in ENVIRONMENT.items() if rule.verdict is Verdict.OURS}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8")
    chosen = variables(config(kind="cuda", index=1))["CUDA_VISIBLE_DEVICES"]
    changed = {name for name in before if made[name] != before[name]}
    assert changed | {"CUDA_VISIBLE_DEVICES"} == ours and chosen == "8"


def test_on_a_gpu_batches_are_vllms_and_compiled_kernels_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.cache")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    said = words(config(kind="cuda"))
    assert (said["--max-num-seqs"], said["--max-num-batched-tokens"]) == ("1024", "8192")
    found = variables(config(kind="cuda"))["TRITON_CACHE_DIR"]
    assert found == "/home/me/.cache/mirage/triton_cache_dir"
    assert variables(config())["TRITON_CACHE_DIR"].startswith("/run/")
    raw = config(kind="cuda").model_dump()
    raw["tenants"][0]["max_num_seqs"] = 7
    assert words(Config.model_validate(raw))["--max-num-seqs"] == "7", "what is written counts"


@pytest.mark.parametrize(
    ("given", "index", "seen"), [(None, 1, "1"), ("3,5", 1, "5"), ("GPU-ab", 0, "GPU-ab")]
)
def test_a_gpu_is_counted_among_those_that_may_be_seen(
    monkeypatch: pytest.MonkeyPatch, given: str | None, index: int, seen: str
) -> None:
    if given:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    found = variables(config(kind="cuda", index=index))
    assert found["CUDA_VISIBLE_DEVICES"] == seen
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "OMP_NUM_THREADS" not in found


def test_an_engine_sees_its_own_gpu_first_and_then_its_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8,9")
    raw = config(kind="cuda", index=2).model_dump()
    peer = {"devices": {"x": {"device": 1, "bytes": 1}, "y": {"device": 0, "bytes": 1}}}
    raw["tiers"] = {"host": {"bytes": 1}, "peer": peer}
    assert variables(Config.model_validate(raw))["CUDA_VISIBLE_DEVICES"] == "9,8,7"
    static = Config.model_validate(raw | {"policy": "static"})
    assert variables(static)["CUDA_VISIBLE_DEVICES"] == "9"


def test_a_gpu_that_may_not_be_seen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ConfigError, match=r"device\.index 1: .* names 1 GPUs"):
        variables(config(kind="cuda", index=1))


def test_how_steps_run_is_the_devices_to_decide() -> None:
    def asked(graphs: bool, compiled: bool) -> Config:
        raw = config(kind="cuda", graphs=graphs, compile=compiled).model_dump()
        raw["tenants"][0]["engine_args"] = {"cc.mode": 0}
        return Config.model_validate(raw)

    eager = asked(False, False)
    check_engine_args(eager, eager.tenants[0])
    for given in (asked(True, False), asked(False, True), asked(True, True)):
        with pytest.raises(ArgumentRefused, match=r"compilation_config follows from device\."):
            check_engine_args(given, given.tenants[0])


def test_a_gpu_compiles_and_captures_unless_told_otherwise() -> None:
    said = words(config(kind="cuda"))
    how = json.loads(said["--compilation-config"])
    assert how == {"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE"}
    settings = json.loads(said["--additional-config"])["mirage"]
    assert settings["compiled"] is True and settings["pieces"] is True
    assert "VLLM_USE_BREAKABLE_CUDAGRAPH" not in variables(config(kind="cuda"))
    without = json.loads(words(config(kind="cuda", graphs=False))["--compilation-config"])
    assert without == {"mode": 3, "cudagraph_mode": "NONE"}


def test_a_host_compiles_if_told_to_and_has_no_graphs() -> None:
    assert "--enforce-eager" in words(config())
    said = words(config(compile=True))
    assert "--enforce-eager" not in said
    assert json.loads(said["--compilation-config"])["mode"] == 3
    with pytest.raises(ValidationError, match="graphs works only with kind: cuda"):
        config(graphs=True)


def test_a_tenants_arguments_stand_for_those_of_the_launcher() -> None:
    raw = config().model_dump()
    raw["tenants"][0]["engine_args"] = {"uvicorn-log-level": "info", "tp": 1}
    made = Config.model_validate(raw)
    line = command(made, made.tenants[0], FIT, Path("/run/a.sock"), None)
    assert "--uvicorn-log-level=info" in line and "--tensor-parallel-size=1" in line
    assert "--uvicorn-log-level" not in line, "not a second time"


@pytest.mark.parametrize(
    ("given", "domains"),
    [
        ({}, ["--allowed-media-domains", NO_DOMAIN]),
        ({"allowed_media_domains": []}, ["--allowed-media-domains", NO_DOMAIN]),
        ({"allowed-media-domains": None}, ["--allowed-media-domains", NO_DOMAIN]),
        ({"allowed_media_domains": ""}, ["--allowed-media-domains", NO_DOMAIN]),
        ({"allowed_media_domains": ["a.org"]}, ["--allowed-media-domains=a.org"]),
        ({"allowed_media_domains": "a.org"}, ["--allowed-media-domains=a.org"]),
        (
            {"allowed-media-domains": ["a.org", "b.org"]},
            ["--allowed-media-domains", "a.org", "b.org"],
        ),
    ],
)
def test_an_engine_fetches_from_no_host_that_is_not_named(
    given: dict[str, Any], domains: list[str]
) -> None:
    raw = config().model_dump()
    raw["tenants"][0]["engine_args"] = given
    made = Config.model_validate(raw)
    line = command(made, made.tenants[0], FIT, Path("/run/a.sock"), None)
    at = [i for i, word in enumerate(line) if word.startswith("--allowed-media-domains")]
    assert len(at) == 1
    assert line[at[0] : at[0] + len(domains)] == domains


def test_an_engine_follows_no_redirects_and_fetches_little(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, usual in CAREFUL.items():
        monkeypatch.delenv(name, raising=False)
        assert variables(config())[name] == usual
        monkeypatch.setenv(name, "1")
        assert variables(config())[name] == "1", "what the environment says counts"
