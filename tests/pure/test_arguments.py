"""`engine_args`: spellings of vLLM's arguments, their allowed values, and the one line of error for
each argument that is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.arguments.check import (
    ArgumentRefused,
    blamed,
    check_environment,
    check_names,
    normalised,
)
from mirage.arguments.page import page
from mirage.arguments.rules import Rule, Verdict, merged, refused, same, works
from mirage.arguments.table import TABLE
from mirage.arguments.variables import ENVIRONMENT
from mirage.config import Config, ConfigError, TenantSection
from mirage.serve.device.changes import OF_WEIGHTS, weights_of
from mirage.serve.launch.launcher import check_engine_args, flags
from mirage.serve.launch.preflight import preflight

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"-O": 3}, {"optimization_level": 3}),
        ({"-O3": None}, {"optimization_level": 3}),
        ({"O=2": True}, {"optimization_level": 2}),
        ({"--tensor-parallel-size": 2}, {"tensor_parallel_size": 2}),
        ({"tp": 2}, {"tensor_parallel_size": 2}),
        ({"-cc.mode": 3}, {"compilation_config": {"mode": 3}}),
        ({"cc.pass_config.a": 1, "cc.mode": 0}, None),
        ({"no-enforce-eager": True}, {"enforce_eager": False}),
        ({"no_enforce_eager": False}, {"enforce_eager": True}),
        ({"disable-lora": True}, {"enable_lora": False}),
        ({"enable_custom_all_reduce": False}, {"disable_custom_all_reduce": True}),
        ({"enable_log_stats": True}, {"enable_log_stats": True}),  # a switch: vLLM has no other
        ({"disable_lora": "x"}, {"disable_lora": "x"}),
        ({"device-memory-utilization": 0.5}, {"gpu_memory_utilization": 0.5}),
        ({"compilation-config": {"mode": 0}, "cc.backend": "x"}, None),
    ],
)
def test_every_spelling_is_vllms_own_name(
    written: dict[str, Any], meant: dict[str, Any] | None
) -> None:
    if meant is None:
        (value,) = normalised(written).values()
        assert sorted(value) in (["mode", "pass_config"], ["backend", "mode"])
    else:
        assert normalised(written) == meant


@pytest.mark.parametrize(
    "written",
    [{"tp": 1, "tensor-parallel-size": 1}, {"cc.mode": 0, "compilation_config": {"mode": 0}}],
)
def test_one_argument_in_two_spellings_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ArgumentRefused, match="given twice"):
        check_names(written)


@pytest.mark.parametrize(
    "written",
    [
        {"enforce_eager": False},
        {"enforce-eager": False},
        {"no-enforce-eager": True},
        {"enforce_eager": "false"},
        {"-O3": None},
        {"-O": "1"},
        {"optimization_level": 2},
        {"compilation_config": {"mode": 3}},
        {"compilation_config": '{"mode": 3}'},
        {"compilation_config": 3},
        {"compilation_config": {"mode": 0, "backend": "inductor"}},
        {"cc.mode": "VLLM_COMPILE"},
        {"compilation_config.cudagraph_mode": "FULL"},
        {"cudagraph_capture_sizes": [1, 2]},
    ],
)
def test_whatever_compiles_is_refused_with_the_reason(written: dict[str, Any]) -> None:
    with pytest.raises(ArgumentRefused, match=r"^engine_args\..* is refused: compiled .*text"):
        check_names(written)


@pytest.mark.parametrize(
    "written",
    [
        {"enforce_eager": True},
        {"-O0": True},
        {"compilation_config": {"mode": 0}},
        {"cc.mode": "none", "cc.cudagraph_mode": "NONE"},
        {"compilation_config": {}},
        {"data_parallel_size": 1, "tp": "1", "pipeline-parallel-size": 1},
        {"cpu_offload_gb": 0, "kv_transfer_config": None, "enable_sleep_mode": False},
        {"load_format": "dummy", "hf_overrides": {"rope_theta": 1e6}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
    ],
)
def test_what_mirage_does_anyway_may_be_said(written: dict[str, Any]) -> None:
    check_names(written)


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ({"tp": 2}, "engine_args.tp: 2 is refused: one GPU and one engine process per model"),
        ({"data_parallel_size": 2}, "remove it, or use 1"),
        ({"enable_sleep_mode": True}, "engine_args.enable_sleep_mode: true is refused"),
        ({"cpu_offload_gb": 0.5}, "engine_args.cpu_offload_gb: 0.5 is refused"),
        ({"load_format": "gguf"}, "use auto, hf, safetensors or dummy"),
        ({"speculative_config": {"method": "suffix"}}, ".method: 'suffix' is refused"),
        (
            {"hf_overrides": {"num_hidden_layers": 2}},
            "hf_overrides.num_hidden_layers: 2 is refused",
        ),
        ({"block-size": 8}, "follows from the rest of the configuration: remove it, and use block"),
        ({"enable_prefx_caching": True}, "nearest: enable_prefix_caching"),
        ({"": 1}, "is no argument"),
    ],
)
def test_the_line_says_what_which_value_and_what_to_do(written: dict[str, Any], line: str) -> None:
    with pytest.raises(ArgumentRefused) as refusal:
        check_names(written)
    assert line in str(refusal.value) and "\n" not in str(refusal.value)


def test_what_is_not_in_the_table_is_refused() -> None:
    """An argument that is not in our table of vLLM's arguments is refused, so that a new one is not
    served unexamined.
    """
    with pytest.raises(ArgumentRefused, match="no argument of the vLLM that MIRAGE was tried with"):
        check_names({"enable_time_travel": True})


def test_one_argument_is_in_one_list() -> None:
    with pytest.raises(ValueError, match="seed is in two lists"):
        merged(works("a", "seed"), refused("b", "seed"))


@given(st.sampled_from(sorted(TABLE)), st.from_type(type[Any]) | st.integers() | st.text())
def test_any_value_gives_one_short_line_or_passes(name: str, value: Any) -> None:
    try:
        check_names({name: value})
    except ArgumentRefused as error:
        assert str(error).startswith(f"engine_args.{name}")
        assert "\n" not in str(error) and len(str(error)) < 500


def test_words_end_without_a_point() -> None:
    for name, rule in (TABLE | ENVIRONMENT).items():
        assert rule.words and not rule.words.endswith("."), name
        assert rule.verdict is Verdict.REFUSED or not rule.but, name


@pytest.mark.parametrize(
    ("value", "fine", "equal"),
    [(0, 0.0, True), ("1", 1, True), (True, 1, False), (1, True, False), (None, "None", False)],
)
def test_values_are_compared_as_words(value: Any, fine: Any, equal: bool) -> None:
    assert same(value, fine) is equal


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"disable_log_stats": False}, []),
        ({"disable_log_stats": True}, ["--disable-log-stats"]),
        ({"enable_lora": False}, ["--no-enable-lora"]),
        ({"seed": -1}, ["--seed=-1"]),
        ({"allowed_origins": ["a", "b"]}, ['--allowed-origins=["a", "b"]']),
        ({"middleware": ["a", "b"]}, ["--middleware=a", "--middleware=b"]),
        ({"api_key": ["-a"]}, ["--api-key=-a"]),
        ({"api_key": ["a", "b"]}, ["--api-key", "a", "b"]),
        ({"lora_modules": [{"name": "x"}]}, ['--lora-modules={"name": "x"}']),
        ({"chat_template": None}, ["--chat-template=None"]),
        ({"hf_token": True}, ["--hf-token"]),
    ],
)
def test_yaml_values_as_words(arguments: dict[str, Any], line: list[str]) -> None:
    assert flags(arguments, joined=True) == line


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("VLLM_KV_CACHE_LAYOUT", "NHD", True),
        ("VLLM_CPU_KVCACHE_SPACE", "4", True),
        ("VLLM_CPU_KVCACHE_SPACE", "0", False),
        ("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "1", True),
        ("VLLM_LOGGING_LEVEL", "INFO", False),
        ("VLLM_KV_CACHE_LAYOUT", "", False),
        ("VLLM_ENABLE_RESPONSES_API_STORE", "1", True),
        ("VLLM_ENABLE_RESPONSES_API_STORE", "0", False),
        ("VLLM_USE_MODELSCOPE", "False", False),
        ("VLLM_PORT", "tcp://10.0.0.1:80", True),
        ("VLLM_NO_USAGE_STATS", "0", False),
        ("CUDA_VISIBLE_DEVICES", "1,2", False),
        ("LOCAL_RANK", "3", True),
    ],
)
def test_variables_that_would_harm_an_engine_are_refused(
    name: str, value: str, refused: bool
) -> None:
    if refused:
        with pytest.raises(ArgumentRefused, match=f"{name}={value} .*: unset it"):
            check_environment({name: value})
    else:
        check_environment({name: value})


def test_a_variable_that_is_in_no_list_is_refused_without_its_value() -> None:
    """A variable `VLLM_...` that is in none of our lists is refused, with the nearest known name.
    The message leaves out its value, which may be secret.
    """
    with pytest.raises(ArgumentRefused) as refusal:
        check_environment({"VLLM_LOGING_LEVEL": "hush"})
    assert str(refusal.value).startswith("VLLM_LOGING_LEVEL in the environment is no variable")
    assert "nearest: VLLM_LOGGING_LEVEL" in str(refusal.value)
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize(
    "name",
    [
        *("VLLM_SERVICE_HOST", "VLLM_SERVICE_PORT", "VLLM_SERVICE_PORT_HTTP", "VLLM_PORT_80_TCP"),
        *("VLLM_PORT_80_TCP_ADDR", "VLLM_ROUTER_SERVICE_HOST", "VLLM_ROUTER_PORT", "MIRAGE_X"),
    ],
)
def test_what_kubernetes_adds_for_a_service_passes(name: str) -> None:
    check_environment({name: "tcp://10.0.0.1:80"})


def test_a_variable_whose_value_an_error_quotes_is_named() -> None:
    found = {"VLLM_MAX_STOP_STRINGS": "many", "VLLM_MAX_N_SEQUENCES": "7", "OTHER": "many"}
    error = "ValueError: invalid literal for int() with base 10: 'many'"
    named = " (VLLM_MAX_STOP_STRINGS in the environment: correct it, or unset it)"
    assert blamed(error, found) == named
    assert blamed("KeyError: 'few'", found) == ""


def test_what_is_said_to_be_fine_is_fine() -> None:
    for name, rule in ENVIRONMENT.items():
        for value in rule.but:
            check_environment({name: value})


def test_what_a_tenant_adds_and_what_all_inherit_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def config(**engine_args: Any) -> Config:
        tenant = {"name": "a", "model": Path("/m"), "share": 50, "engine_args": engine_args}
        return Config.model_validate({"device": {"memory": "1GiB"}, "tenants": [tenant]})

    def check(made: Config) -> None:
        check_engine_args(made, made.tenants[0])

    check(config(seed=1))
    with pytest.raises(ArgumentRefused, match=r"^engine_args\.tp: 2 is refused"):
        check(config(tp=2))
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    with pytest.raises(ConfigError, match=r"^VLLM_KV_CACHE_LAYOUT=HND in the environment"):
        preflight(config(seed=1))


def test_rules_look_inside_json_written_as_text() -> None:
    rule = Rule(Verdict.REFUSED, "no", (), {"a": Rule(Verdict.REFUSED, "inner", (1,))})
    assert rule.problem('{"a": 1}') is None
    assert rule.problem('{"a": 2}') == (".a", 2, "inner")
    assert rule.problem("{") == ("", "{", "no")


def test_the_page_is_what_the_table_says() -> None:
    written = (Path(__file__).parents[2] / "docs" / "arguments.md").read_text()
    assert written == page(), "make it anew: python -m mirage.arguments.page docs/arguments.md"


def test_arguments_of_which_the_weights_depend_are_known_in_every_spelling(tmp_path: Path) -> None:
    def of(**engine_args: Any) -> object:
        one = {"name": "a", "model": str(tmp_path), "share": 50, "engine_args": engine_args}
        return weights_of(TenantSection.model_validate(one))

    assert TABLE.keys() >= OF_WEIGHTS
    assert of(seed=3) == of() != of(**{"load-format": "dummy"}) == of(load_format="dummy")
    assert of(**{"no-enable-lora": True}) == of(enable_lora=False)
