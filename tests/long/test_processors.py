"""Families of each kind on every class of processor up to this one, and with what AMX packs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mirage.processors import TABLE
from tests import kinds
from tests.processor import lacks_kernel
from tests.zoo import FAMILIES, elsewhere, make_all
from tests.zoo.checking import check, disagreements
from tests.zoo.judging import differences

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

EACH = (
    *("opt", "llama", "gemma3", "mixtral", "qwen3-moe", "deepseek-v2", "deepseek-v3"),
    *("llama-w8a8", "llama-w4a16", "llama-gptq", "llama-awq"),
    *("granite4-hybrid", "llama-8-bit-kv", "llama-lora", "qwen3-embedding"),
)

LACKING = {"avx2": 4}
"""Number of families that vLLM has no kernel for."""


@pytest.fixture(scope="module", params=kinds.ORDER)
def processor(request: pytest.FixtureRequest) -> str:
    if not kinds.runs_here(request.param):
        pytest.skip(f"engines cannot run as on {request.param} here")
    return str(request.param)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all([FAMILIES[name] for name in EACH], tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def runs(processor: str, models: Path) -> dict[str, dict[str, dict[str, Any]]]:
    return elsewhere.in_modes(processor, EACH, models)


def test_outputs_are_plain_vllms(processor: str, runs: dict[str, Any]) -> None:
    plain, ours = runs["plain"], runs["mirage"]
    able = [name for name in EACH if not lacks_kernel(plain[name].get("failed"))]
    assert len(EACH) - len(able) <= LACKING.get(processor, 0)
    wrong = {name: differences(plain[name], ours[name]) for name in able}
    assert {name: what for name, what in wrong.items() if what} == {}
    extension = TABLE[kinds.PROCESSORS[processor]].extension
    assert {ours[name]["extension"] for name in able} == {extension}


def test_check_says_what_the_engines_then_have(
    processor: str, runs: dict[str, Any], models: Path
) -> None:
    ours = {name: facts for name, facts in runs["mirage"].items() if "shape" in facts}
    said = dict(check([FAMILIES[name] for name in ours], models, elsewhere.probe(processor)))
    wrong = {name: disagreements(said[name], facts["shape"]) for name, facts in ours.items()}
    assert {name: what for name, what in wrong.items() if what} == {}
