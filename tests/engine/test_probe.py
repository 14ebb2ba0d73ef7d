"""Facts that vLLM tells about models before any start are those that an engine then has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from probing import answers, question
from tiny import make_model
from unusual import OFFSET

from benchmarks.gpu.dummies import hollow
from mirage.facts import ModelFacts
from mirage.tools.demo.tokenizer import save_tokenizer
from tests.zoo import FAMILIES, make

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FALCON = {"vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}


READS = "block_tokens: vLLM's CPU_ATTN reads KV blocks of a multiple of 32 tokens"
UNREAD = (
    ("blocks of 16", 16, 32),
    ("blocks of 48", 48, 64),
    ("windows of 16", 16, 32),
    ("draft of 8", 8, 32),
)
FOUR_BITS = ("gptq", "awq", "w4a16")
"""Formats of weights in which vLLM's builds for CPUs multiply on some processors alone."""


def hf_folder(folder: Path, config: Any) -> Path:
    """Folder with a model's configuration and a tokenizer, without weights."""
    config.save_pretrained(folder)
    return talking(folder)


def talking(folder: Path) -> Path:
    """The folder, with a tokenizer added."""
    save_tokenizer(folder, 2048)
    return folder


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    import transformers as hf

    folder = tmp_path_factory.mktemp("models")
    falcon = hf.FalconConfig(**FALCON, multi_query=True, architectures=["FalconForCausalLM"])
    gemma = hf.Gemma3TextConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        sliding_window=64,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
        architectures=["Gemma3ForCausalLM"],
    )
    bert = hf.BertConfig(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=128,
        architectures=["BertModel"],
    )
    llama = talking(make_model("llama", folder))
    drafting = {"method": "draft_model", "num_speculative_tokens": 2}
    drafting["model"] = str(make_model("llama", folder, layers=2))
    adapters = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    eagle = make(FAMILIES["llama-eagle"], folder)
    big = hollow(folder / "opt")
    return answers(
        [
            question("llama", llama),
            question("falcon", hf_folder(folder / "falcon", falcon), load_format="dummy"),
            question("gemma", hf_folder(folder / "gemma", gemma), load_format="dummy"),
            question(
                "bert",
                hf_folder(folder / "bert", bert),
                load_format="dummy",
                runner="pooling",
                max_num_batched_tokens=512,
            ),
            question(
                "prefixes of bert",
                hf_folder(folder / "bert", bert),
                load_format="dummy",
                runner="pooling",
                max_num_batched_tokens=512,
                enable_prefix_caching=True,
            ),
            question("scanned", make(FAMILIES["mamba"], folder)),
            question("fp8", make(FAMILIES["llama-fp8"], folder)),
            question("states", make(FAMILIES["mamba2"], folder), enable_prefix_caching=True),
            question("drafted", llama, speculative_config=drafting),
            question("adapted", llama, **adapters),
            question("eagle", eagle, **FAMILIES["llama-eagle"].all_arguments(eagle)),
            question("no eagle", eagle),
            question(
                "adapted eagle", eagle, **FAMILIES["llama-eagle"].all_arguments(eagle) | adapters
            ),
            question("packed", talking(make_model(OFFSET, folder)), **adapters),
            question(
                "latent in 8 bits", make(FAMILIES["deepseek-v2"], folder), kv_cache_dtype="fp8"
            ),
            question("keys in 8 bits", llama, kv_cache_dtype="fp8"),
            *(question(name, make(FAMILIES[f"llama-{name}"], folder)) for name in FOUR_BITS),
            question("blocks of 16", llama, block_size=16),
            question("blocks of 48", llama, block_size=48),
            question("windows of 16", make(FAMILIES["gemma3"], folder), block_size=16),
            question("draft of 8", llama, speculative_config=drafting, block_size=8),
            question("latent", make(FAMILIES["deepseek-v2"], folder), block_size=48),
            question("states of 8", make(FAMILIES["mamba2"], folder), block_size=8),
            question(
                "hybrid of 48",
                make(FAMILIES["granite4-hybrid"], folder),
                block_size=48,
                enable_prefix_caching=False,
            ),
            question("opt-13b", big, max_model_len=2048),
            question("too long", llama, max_model_len=4096),
            question("unknown", llama, enforce_egaer=True),
            question("compiled", llama, enforce_eager=False),
            question("samples as nowhere", llama, generation_config="/nowhere"),
            question("two", llama, data_parallel_size=2),
        ]
    )


def facts(said: dict[str, dict[str, Any]], name: str) -> ModelFacts:
    assert "facts" in said[name], said[name]
    return msgspec.convert(said[name]["facts"], ModelFacts)


def test_a_llama_is_what_its_shape_says(said: dict[str, dict[str, Any]]) -> None:
    found = facts(said, "llama")
    assert (found.architecture, found.layers, found.stays) == ("LlamaForCausalLM", 10, None)
    (group,) = found.kv.groups
    assert (group.kind, group.layers, group.block_tokens) == ("full_attention", 10, 32)
    assert found.block_bytes == 2 * 2 * 32 * 2 * 10 * 32  # keys and values, heads, size, bf16
    assert found.kv.request_blocks == 512 // 32


def test_one_head_of_keys_is_counted_once(said: dict[str, dict[str, Any]]) -> None:
    """Falcon's configuration names 8 heads of keys but has one. Block bytes are
    those of one head.
    """
    found = facts(said, "falcon")
    assert found.block_bytes == 2 * 1 * 32 * 2 * 4 * 32


def test_windows_and_full_attention_are_groups_of_one_pool(
    said: dict[str, dict[str, Any]],
) -> None:
    found = facts(said, "gemma")
    kinds = sorted(group.kind for group in found.kv.groups)
    assert kinds == ["full_attention", *["sliding_window"] * 3]
    assert {group.layers for group in found.kv.groups} == {2}
    assert found.block_bytes == 2 * 1 * 32 * 2 * 2 * 32, "two layers share a block"
    full, *windows = sorted(found.kv.groups, key=lambda group: group.kind)
    assert full.most_blocks == 16
    # The window, a step's tokens, and a block that the window begins in.
    assert {group.most_blocks for group in windows} == {-(-(63 + 256) // 32) + 1}


def test_blocks_are_as_large_as_vllm_makes_them(said: dict[str, dict[str, Any]]) -> None:
    """Block sizes that vLLM fixes: one for latent attention on a CPU, and one for hybrid models,
    whose blocks hold a state.
    """
    if torch.cpu._is_amx_tile_supported():
        assert "multiple of 32 tokens, not of 48: write 64" in said["latent"]["refused"]
    else:
        assert [group.block_tokens for group in facts(said, "latent").kv.groups] == [16]
    hybrid = facts(said, "hybrid of 48").kv.groups
    # vLLM keeps the state in float32 where AVX-512 has bfloat16, else in the model's bfloat16.
    tokens = 96 if torch.cpu._is_avx512_bf16_supported() else 64
    assert {group.block_tokens for group in hybrid if group.grows} == {tokens}
    assert not any(group.grows for group in facts(said, "states of 8").kv.groups)


def test_an_encoder_has_layers_and_no_kv_cache(said: dict[str, dict[str, Any]]) -> None:
    found = facts(said, "bert")
    assert (found.runner, found.layers, found.block_bytes) == ("pooling", 4, 0)
    assert found.kv.groups == ()


def test_a_draft_model_has_kv_and_takes_fixed_memory(said: dict[str, dict[str, Any]]) -> None:
    plain, drafted = facts(said, "llama"), facts(said, "drafted")
    assert (drafted.layers, drafted.layer_bytes) == (plain.layers, plain.layer_bytes)
    assert [group.layers for group in drafted.kv.groups] == [10 + 2]
    # Two layers, an embedding and an output head; the rotary cache is shared.
    assert drafted.fixed_bytes >= plain.fixed_bytes + 2 * 393_472 + 2 * 512 * 128 * 2


def test_a_head_that_guesses_shares_the_embeddings_that_it_does_not_have(
    said: dict[str, dict[str, Any]],
) -> None:
    more = facts(said, "eagle").fixed_bytes - facts(said, "no eagle").fixed_bytes
    # One layer, the matrix over a state and an embedding, a norm; an attention's scales.
    head = 2 * (4 * 128 * 128 - 2 * 64 * 128 + 3 * 256 * 128 + 256 * 128 + 128)
    if torch.cpu._is_amx_tile_supported():  # the packed copy of its output head
        head += 2 * 512 * 128
    assert head <= more < head + 64


def test_adapters_take_fixed_memory(said: dict[str, dict[str, Any]]) -> None:
    plain, adapted = facts(said, "llama"), facts(said, "adapted")
    assert adapted.layer_bytes == plain.layer_bytes
    # Two stacked adapters of rank 8 for four linear layers in each of ten.
    assert adapted.fixed_bytes > plain.fixed_bytes + 2 * 8 * 10 * 4 * 128 * 2


def test_a_large_model_takes_no_memory_to_ask(said: dict[str, dict[str, Any]]) -> None:
    found = facts(said, "opt-13b")
    assert found.layers == 40
    assert found.layer_bytes == pytest.approx(629.4e6, rel=1e-3)
    assert 40 * found.layer_bytes + found.fixed_bytes == pytest.approx(25.7e9, rel=1e-2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("too long", "max_model_len (4096) is greater than"),
        ("unknown", "enforce_egaer: this vLLM knows no such argument"),
        ("compiled", "compilation mode"),
        ("samples as nowhere", "no generation_config.json in /nowhere: correct the path"),
        ("two", "data_parallel_size 2"),
        ("prefixes of bert", "has no KV cache, in which prefixes would stay: leave it out"),
        ("scanned", "no kernel selective_scan_fwd, which its Mamba layers need"),
        ("fp8", "no kernel static_scaled_fp8_quant, which its FP8 layers need"),
        ("adapted eagle", "enable_lora with speculative decoding by eagle: adapters and this kind"),
        ("packed", "enable_lora: oneDNN packs this model's weights away"),
        ("latent in 8 bits", "kv_cache_dtype fp8: vLLM's latent attention on a CPU cannot read"),
        ("states", "cannot cache prefixes of a model with Mamba2 layers: set it to false"),
        *((name, f"{READS}, not of {size}: write {fits}") for name, size, fits in UNREAD),
    ],
)
def test_what_vllm_or_mirage_refuses_is_one_line(
    said: dict[str, dict[str, Any]], name: str, words: str
) -> None:
    assert words in said[name]["refused"]
    assert "\n" not in said[name]["refused"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("keys in 8 bits", "kv_cache_dtype fp8: FP8 KV cache on CPU requires x86 with AVX-512"),
        *((name, "no kernel cpu_gemm_wna16 for this processor") for name in FOUR_BITS),
    ],
)
def test_what_vllm_computes_on_some_processors_is_refused_on_the_others(
    said: dict[str, dict[str, Any]], name: str, words: str
) -> None:
    if torch.cpu._is_avx512_supported():
        facts(said, name)
    else:
        assert words in said[name]["refused"]
