"""Verdict of `mirage check` on an architecture, from the record of families that were tried."""

from __future__ import annotations

import pytest

from mirage.serve.fit.proven import Book, ProvenFamily, beside, book, judged, read_book, verdict

pytestmark = pytest.mark.pure


def row(
    family: str, architecture: str, reason: str = "", quantisation: str = "", *beside: str
) -> ProvenFamily:
    return ProvenFamily(family, architecture, quantisation, not reason, 18, 40, reason, beside)


KNOWN = Book(
    "0.32.0",
    "2026-11-22",
    [
        row("llama", "LlamaForCausalLM"),
        row("llama-w8a8", "LlamaForCausalLM", "its kernel hides the weights", "compressed-tensors"),
        row("llama-lora", "LlamaForCausalLM", "", "", "enable_lora"),
        row("falcon-7b", "FalconForCausalLM"),
        row("falcon-40b", "FalconForCausalLM"),
        row("mamba", "MambaForCausalLM", "plain vLLM fails: no kernel"),
    ],
    {"TeleChat3ForCausalLM": "LlamaForCausalLM"},
)


def test_proven_says_how_much_was_run_and_when() -> None:
    said = judged(KNOWN, "LlamaForCausalLM")
    assert said == "proven (18 prompts, 40 changes of memory, vLLM 0.32.0, 2026-11-22)"
    assert judged(KNOWN, "FalconForCausalLM").startswith("proven (36 prompts, 80 changes")


def test_a_quantised_model_is_another_matter() -> None:
    said = judged(KNOWN, "LlamaForCausalLM", "compressed-tensors")
    assert said == "not proven as llama-w8a8: its kernel hides the weights"
    assert judged(KNOWN, "LlamaForCausalLM", "awq").startswith("not tried as awq; proven (")


def test_with_adapters_it_is_another_matter_too() -> None:
    said = judged(KNOWN, "LlamaForCausalLM", "", ("enable_lora",))
    assert said.startswith("proven (18 prompts")
    said = judged(KNOWN, "FalconForCausalLM", "", ("enable_lora", "kv_cache_dtype"))
    assert said.startswith("not tried with enable_lora and kv_cache_dtype; proven (36 prompts")
    said = judged(KNOWN, "FalconForCausalLM", "awq", ("enable_lora",))
    assert said.startswith("not tried as awq and enable_lora; proven (36 prompts")


def test_an_arguments_default_is_not_another_matter() -> None:
    given = {"enable_lora": False, "kv_cache_dtype": "auto", "model_impl": None, "seed": 1}
    assert beside(given) == ()
    assert beside({"kv_cache_dtype": "fp8", "speculative_config": {"method": "ngram"}}) == (
        "kv_cache_dtype",
        "speculative_config",
    )


def test_what_failed_says_why() -> None:
    assert judged(KNOWN, "MambaForCausalLM") == "not proven as mamba: plain vLLM fails: no kernel"


def test_shared_parts_and_the_unknown() -> None:
    said = judged(KNOWN, "TeleChat3ForCausalLM")
    assert said == "same parts as LlamaForCausalLM, not tried"
    assert judged(KNOWN, "NobodyForCausalLM") == "not tried"


def test_the_data_file_reads_and_names_each_family_once() -> None:
    known = book()
    names = [each.family for each in known.rows]
    assert len(names) == len(set(names)) > 50
    assert all(each.reason for each in known.rows if not each.proven)
    tried = {each.architecture for each in known.rows}
    assert set(known.same_parts.values()) <= tried
    assert not tried & set(known.same_parts)
    assert verdict("LlamaForCausalLM").startswith("proven (")


def test_a_data_file_without_rows_reads() -> None:
    text = '{"vllm": "1", "date": "", "rows": [], "same_parts": {}}'
    assert judged(read_book(text), "LlamaForCausalLM") == "not tried"
