"""Our table of arguments against the installed vLLM: parser, configuration, and a few engines."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from argued import LENGTH, configured, line_of
from drawing_arguments import actions, drawn, kind_of
from hypothesis import given
from hypothesis import strategies as st
from judging import NO_KERNEL, judgement, outcomes
from tiny import make_model

from mirage.arguments.check import (
    ALIASES,
    JSON_LISTS,
    REPEATED,
    SWITCHES,
    ArgumentRefused,
    check_names,
    normalised,
)
from mirage.arguments.rules import Verdict
from mirage.arguments.table import NEWER, TABLE
from mirage.arguments.variables import ENVIRONMENT
from mirage.engine.arguments import MOST_DRAFTED, parse, server_parser, verify
from mirage.serve.adapting.adapters import RANKS
from mirage.serve.launch.launcher import flags
from mirage.tools.demo.tokenizer import save_tokenizer
from tests.examples import examples
from tests.vllm_names import version

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tokenizer(make_model("llama", folder), LENGTH)
    return folder


@pytest.fixture
def model(models: Path) -> Path:
    return models / "llama-10-128"


# -- the parser -----------------------------------------------------------------------------


def test_the_table_has_exactly_vllms_arguments() -> None:
    theirs = {action.dest for action in server_parser()._actions}
    assert theirs in (set(TABLE), set(TABLE) - NEWER)


def test_other_spellings_are_vllms() -> None:
    spelled: dict[str, str] = {}
    for action in server_parser()._actions:
        for option in action.option_strings:
            name = option.lstrip("-").replace("-", "_")
            opposite = normalised({name: True}) == {action.dest: False}
            if name != action.dest and not opposite:
                spelled[name] = action.dest
    assert {**spelled, "O": "optimization_level"} == ALIASES


def test_how_values_are_written_is_vllms() -> None:
    parser = server_parser()._actions
    on = argparse._StoreTrueAction
    assert {a.dest for a in parser if isinstance(a, on)} == SWITCHES
    repeated = argparse._AppendAction
    assert {a.dest for a in parser if isinstance(a, repeated)} == REPEATED
    for action in parser:
        if action.dest in JSON_LISTS:
            assert action.nargs is None and isinstance(action.default, list)


OF_SOME_VERSIONS = {
    "0.32": {
        *("VLLM_ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS", "VLLM_ROCM_AITER_MLA_DCP_VERIFY"),
        *("VLLM_ROCM_MONO_DECODE", "VLLM_ROCM_USE_AITER_FP4_ASM_GEMM"),
        *("VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE", "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM"),
        *("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "VLLM_USE_RAY_WRAPPED_PP_COMM"),
    },
    "0.33": {
        *("VLLM_BEAM_ALWAYS_CONSTRAIN_OUTPUT", "VLLM_CHAT_TEMPLATE_FUEL"),
        *("VLLM_COHERE2_ATTN_MOE_DUAL_STREAM_TOKEN_THRESHOLD", "VLLM_HTTP_MAX_REQUEST_BODY_SIZE"),
        *("VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES", "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB"),
        *("VLLM_REQUEST_BODY_LOG_LEVEL", "VLLM_ROCM_MUSE_MOE_ONLINE_QUANT"),
        *("VLLM_ROCM_MUSE_MOE_REDUCE_DTYPE", "VLLM_STEP5_SHARD_SP_SHARED_EXPERT"),
    },
}
"""Variables that one version of vLLM has and the other has not."""


def test_the_table_has_exactly_vllms_variables() -> None:
    from vllm import envs

    mine = version(Path(envs.__file__).parents[1])
    others = [own for minor, own in OF_SOME_VERSIONS.items() if not mine.startswith(minor)]
    assert len(others) == len(OF_SOME_VERSIONS) - 1
    assert set(ENVIRONMENT) - set().union(*others) == set(envs.environment_variables)


OTHER_THAN_VLLMS = {"VLLM_CPU_KVCACHE_SPACE", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_USE_AOT_COMPILE"}
"""Variables of which a value is accepted that turns off what vLLM may choose by itself."""
REFUSED = {name: rule.but for name, rule in ENVIRONMENT.items() if rule.verdict is Verdict.REFUSED}


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - OTHER_THAN_VLLMS))
def test_a_value_of_a_variable_that_is_fine_is_vllms_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import envs

    if name not in envs.environment_variables:
        pytest.skip("another version of vLLM has it")
    monkeypatch.delenv(name, raising=False)
    own = envs.environment_variables[name]()
    for value in REFUSED[name]:
        monkeypatch.setenv(name, value)
        assert envs.environment_variables[name]() == own


VALUES: dict[str, Callable[[argparse.Action], st.SearchStrategy[Any]]] = {
    "switch": lambda action: st.booleans(),
    "bool": lambda action: st.booleans(),
    "choice": lambda action: st.sampled_from([c for c in action.choices or () if c is not None]),
    "int": lambda action: st.integers(-(2**31), 2**40),
    "float": lambda action: st.floats(allow_nan=False, allow_infinity=False),
    "json": lambda action: st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())
    ),
    "text": lambda action: st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF)),
}
PLAIN = {
    action.dest: action
    for action in actions()
    # Texts with a meaning of their own, and lists of numbers or of dotted names, come below.
    if kind_of(action) in VALUES
    and action.nargs != "+"
    and action.dest not in ("lora_modules", "device_ids", "config")
}
ANY = st.sampled_from(sorted(PLAIN)).flatmap(
    lambda name: st.tuples(st.just(name), VALUES[kind_of(PLAIN[name])](PLAIN[name]))
)


@given(ANY)
@examples(600)
def test_vllm_reads_back_what_was_written(pair: tuple[str, Any]) -> None:
    name, value = pair
    read = vars(server_parser().parse_args(flags({name: value}, joined=True)))[name]
    kind = kind_of(PLAIN[name])
    if kind == "text" and read != value:  # a JSON object, a name of nothing, a bounded number
        assert value in ("", "None") or str(value).strip().startswith("{"), (name, value)
    else:
        assert read == value


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("allowed_origins", ["a", "-b"], ["a", "-b"]),
        ("middleware", ["a.b", "c"], ["a.b", "c"]),
        ("api_key", ["one", "two"], ["one", "two"]),
        ("api_key", "one", ["one"]),
        ("api_key", ["-one"], ["-one"]),
        ("logits_processors", ["a.b:C"], ["a.b:C"]),
        ("cudagraph_capture_sizes", [1, 2], [1, 2]),
        ("chat_template", None, None),
        ("hf_token", True, True),
        ("hf_overrides", {"rope_theta": 1.5, "a": [True, None]}, None),
        ("disable_log_stats", False, False),
    ],
)
def test_lists_and_other_shapes_are_read_back(name: str, value: Any, read: Any) -> None:
    found = vars(server_parser().parse_args(flags({name: value}, joined=True)))[name]
    assert found == (value if isinstance(value, dict) else read)


def test_lora_modules_may_be_mappings() -> None:
    item = {"name": "x", "path": "/p", "base_model_name": "m"}
    (found,) = parse(flags({"lora_modules": [item]}, joined=True)).lora_modules
    assert (found.name, found.path) == ("x", "/p")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"seed": "x"}, r"^engine_args\.seed: invalid int value: 'x'$"),
        ({"logprobs_mode": "x"}, r"^engine_args\.logprobs_mode: invalid choice: 'x'"),
        ({"enable_prefix_caching": "no"}, r"^engine_args\.enable_prefix_caching: .*'no'$"),
        ({"seed": [1, 2]}, r"^'2' belongs to no argument"),
        ({"enable_prefx_caching": True}, r"knows no such argument; nearest: enable_prefix_cach"),
        ({"enforce_eag": True}, r"^engine_args\.enforce_eag: this vLLM knows no such argument"),
        (
            {"tokenizer_mode": "slow"},
            r"engine_args\.tokenizer_mode: 'slow' is none of .*auto, .*hf",
        ),
        ({"ignore_patterns": []}, r"^engine_args\.ignore_patterns: expected at least one"),
        ({"enable_auto_tool_choice": True}, r"requires --tool-call-parser"),
        ({"tool_call_parser": "x", "enable_auto_tool_choice": True}, r"invalid tool call parser"),
        ({"structured_outputs_config": {"backend": "x"}}, r"^engine_args\.structured_outputs_conf"),
        ({"compilation_config": {"mood": 1}}, r"^engine_args\.compilation_config: .*mood"),
    ],
)
def test_what_vllm_refuses_is_one_line(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(ArgumentRefused, match=line) as refusal:
        parse(flags(arguments, joined=True))
    assert "\n" not in str(refusal.value)


def test_a_parser_of_the_users_own_is_found(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from vllm.tool_parsers import ToolParser, ToolParserManager\n"
        "@ToolParserManager.register_module('mine')\n"
        "class Mine(ToolParser): pass\n"
    )
    given = {"tool_call_parser": "mine", "enable_auto_tool_choice": True}
    assert parse(flags({**given, "tool_parser_plugin": str(plugin)}, joined=True))


@pytest.mark.parametrize("seed", range(4))
def test_drawn_arguments_are_refused_in_one_line_or_read(seed: int) -> None:
    rng = random.Random(seed)
    for action in actions():
        value = drawn(action, rng)
        try:
            check_names({action.dest: value})
            parse(flags(normalised({action.dest: value}), joined=True))
        except ArgumentRefused as error:
            assert str(error) and "\n" not in str(error), (action.dest, value)


# -- the effective configuration --------------------------------------------------------------


def effective(model: Path, **engine_args: Any) -> Any:
    """vLLM's configuration for our command line with these arguments, without the checks of our
    table.
    """
    words = line_of(model, {}, "mirage") + flags(engine_args, joined=True)
    return configured(words, "plain")[0]


@pytest.mark.parametrize(
    ("engine_args", "line"),
    [
        ({"enforce_eager": False}, "compilation mode"),
        ({"data_parallel_size": 2}, "data_parallel_size 2: one GPU"),
        ({"cpu_offload_gb": 1.0}, "weight offloading"),
        ({"offload_group_size": 2}, "weight offloading"),
        ({"kv_offloading_size": 1.0}, "kv_"),
        ({"kv_events_config": {"enable_kv_cache_events": False}}, "kv_events_config"),
        ({"worker_extension_cls": "x.Y"}, "worker_extension_cls x.Y"),
        ({"seed": -1}, "seed -1: engines take 0 to 2**32 - 1"),
        ({"renderer_num_workers": 0}, "renderer_num_workers 0: the server takes 1 and more"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 200}},
            "num_speculative_tokens 200: vLLM verifies 128 at most",
        ),
    ],
)
def test_an_effective_configuration_that_cannot_be_served_is_named(
    model: Path, engine_args: dict[str, Any], line: str
) -> None:
    assert (why := verify(effective(model, **engine_args))) is not None
    assert line in why and "\n" not in why


def test_what_is_repeated_of_vllm_is_vllms() -> None:
    from vllm.config.lora import MaxLoRARanks
    from vllm.v1.sample.rejection_sampler import MAX_SPEC_LEN

    assert get_args(MaxLoRARanks) == RANKS
    assert MAX_SPEC_LEN == MOST_DRAFTED


@pytest.mark.parametrize(
    "engine_args",
    [
        {},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        {"enable_chunked_prefill": True, "seed": 4},
        {"compilation_config": {"mode": 0}},
        {"enable_lora": True},
    ],
)
def test_what_is_served_is_not_refused(model: Path, engine_args: dict[str, Any]) -> None:
    assert verify(effective(model, **engine_args)) is None


# -- engines ----------------------------------------------------------------------------------

FEW: list[dict[str, Any]] = [
    {
        "engine_args": {
            "seed": 7,
            "max_logprobs": 30,
            "logprobs_mode": "processed_logprobs",
            "scheduling_policy": "priority",
            "max_num_active_seqs": 4,
            "long_prefill_token_threshold": 32,
            "kv_cache_metrics": True,
            "enable_mfu_metrics": True,
        },
        "priority": True,
    },
    {"engine_args": {"enable_chunked_prefill": False, "kv_cache_dtype": "fp8"}, "batched": LENGTH},
    {
        "engine_args": {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_min": 1,
                "prompt_lookup_max": 3,
            }
        },
        "repeats": True,
    },
    {"engine_args": {"enforce_eager": False}},
    {"engine_args": {"enforce_eager": False}, "unchecked": True},
]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_engines_with_arguments_say_what_plain_vllm_says(models: Path) -> None:
    ours = outcomes(models, FEW, "mirage")
    plain = outcomes(models, FEW[:-2], "plain")
    found = [judgement(a, b) for a, b in zip(plain, ours, strict=False)]
    said = [o.said for o in ours if o.kind != "text"]
    assert set(found) <= {"equal", NO_KERNEL} and found.count(NO_KERNEL) <= 1, (found, said)
    for outcome in (o for o, how in zip(ours, found, strict=False) if how == "equal"):
        layers_remapped, grown, shrunk = outcome.said["moved"]
        assert layers_remapped >= 5 and grown and shrunk
    guessed, right = ours[2].said["drafts"]
    assert guessed > right > 0, "what was guessed was sometimes right, and sometimes not"
    # Compiled steps: the check says so, and the worker itself if nobody has asked the check.
    checked, unchecked = ours[-2:]
    assert checked.kind == "refused" and "compiled steps" in checked.said
    assert unchecked.kind == "died" and "RuntimeError: compilation mode" in unchecked.said
