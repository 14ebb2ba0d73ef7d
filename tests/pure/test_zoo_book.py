"""Runs of model families become rows of a book, and the page about families."""

from __future__ import annotations

from typing import Any

import pytest

from tests.zoo import FAMILIES
from tests.zoo.book import Tried, page, proven
from tests.zoo.checking import disagreements

pytestmark = pytest.mark.pure

SHAPE = {
    "layers": 8,
    "layer_bytes": 8192,
    "fixed_bytes": 5000,
    "extent_blocks": 1,
    "extent_bytes": 4096,
    "min_extents": 17,
    "movable_layers": 8,
}
SAID: dict[str, Any] = {**SHAPE, "stays": None, "date": "2026-11-22"}
DAY = {"date": "2026-11-22"}
PLAIN = {
    "architecture": "LlamaForCausalLM",
    "rounds": [[[[5, 6], [-1.0]]]] * 3,
    "hits": 0,
    "groups": [],
    "prompts": 3,
} | DAY
OURS = {
    **PLAIN,
    "shape": SHAPE,
    "layers": 8,
    "kv": True,
    "remapped_counts": [0, 1, 2, 3],
    "slot_counts": [1, 2],
    "bytes_streamed": 1,
    "grown": 3,
    "shrunk": 3,
    "changes": 9,
}
BROKEN = {"rounds": [[[[5, 5], [-1.0]]]], "layers": 8} | DAY
GOOD: dict[str, Any] = {"check": SAID, "plain": PLAIN, "mirage": OURS, "nowait": BROKEN}


def tried(**runs: Any) -> Tried:
    return Tried(FAMILIES["llama"], GOOD | runs)


def row(**runs: Any) -> dict[str, Any]:
    return dict(proven([tried(**runs)], "0.32.0", {})["rows"][0])


def test_a_family_is_proven_by_equal_outputs_and_a_control_that_differs() -> None:
    assert row() == {
        "family": "llama",
        "architecture": "LlamaForCausalLM",
        "quantisation": "",
        "proven": True,
        "prompts": 3,
        "changes": 9,
        "reason": "",
        "beside": (),
    }


def test_arguments_with_which_it_computes_otherwise_are_noted() -> None:
    families = ("llama-lora", "llama-8-bit-kv", "llama-eagle", "llama-by-transformers")
    assert [Tried(FAMILIES[name], {}).beside for name in families] == [
        ("enable_lora",),
        ("kv_cache_dtype",),
        ("speculative_config",),
        ("model_impl",),
    ]


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ({"plain": {"failed": "no kernel"} | DAY}, "plain vLLM fails: no kernel"),
        ({"mirage": {"failed": "it fell"} | DAY}, "mirage: it fell"),
        ({"mirage": {**OURS, "rounds": BROKEN["rounds"] * 3}}, "round 1: 1 of 1 prompts differ"),
        ({"nowait": PLAIN}, "without waits the outputs are the same"),
        ({"plain-async": PLAIN, "mirage-async": {"failed": "it fell"} | DAY}, "mirage: it fell"),
    ],
)
def test_anything_else_is_a_reason(runs: dict[str, Any], reason: str) -> None:
    found = row(**runs)
    assert not found["proven"] and reason in found["reason"]


def test_what_was_not_run_makes_no_row() -> None:
    assert proven([Tried(FAMILIES["llama"], {})], "0.32.0", {})["rows"] == []


def test_layers_that_stay_need_no_control() -> None:
    stays = {**OURS, "layers": 0, "remapped_counts": [0], "slot_counts": [0], "bytes_streamed": 0}
    assert row(mirage=stays, nowait={**PLAIN, "layers": 0})["proven"]


def test_same_parts_are_of_the_same_module_and_untried() -> None:
    modules = {"LlamaForCausalLM": "llama", "TeleChat3ForCausalLM": "llama", "OPT": "opt"}
    data = proven([tried()], "0.32.0", modules)
    assert data["same_parts"] == {"TeleChat3ForCausalLM": "LlamaForCausalLM"}
    data = proven([tried(mirage={"failed": "it fell"} | DAY)], "0.32.0", modules)
    assert data["same_parts"] == {}, "nobody is like one that failed"


def test_check_and_engine_are_compared() -> None:
    assert disagreements(SAID, SHAPE) == []
    assert disagreements(SAID | {"min_extents": 18}, SHAPE) == ["min_extents 18, engine 17"]
    assert disagreements(SAID | {"stays": "packed"}, SHAPE) != []
    assert disagreements(SAID, SHAPE | {"movable_layers": 0}) != []
    assert tried().check() == "agrees"
    assert tried(check={"refused": "no room"} | DAY).check() == "refuses it"


def test_the_page_has_every_family_and_no_broken_cell() -> None:
    failed = tried(mirage={"failed": "a | b\nc"} | DAY)
    others = [Tried(f, {}) for f in FAMILIES.values() if f.name != "llama"]
    text = page([failed, *others], "0.32.0")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in rows} == {11}
    assert {line.split(" | ")[0][2:] for line in rows} >= set(FAMILIES)
    assert "a / b c" in text
