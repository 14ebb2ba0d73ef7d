"""Bit-identity with plain vLLM for the families that differ most; `make long` has all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.processor import lacks_kernel
from tests.zoo import FAMILIES, driving, make_all
from tests.zoo.checking import check, disagreements
from tests.zoo.judging import differences, hidden, variety

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MOST_DIFFERENT = {
    "cohere2": True,  # windows and full attention: several KV groups
    "gemma4": True,  # the same with blocks of two sizes
    "granite4-hybrid": True,  # state space and convolutions among attention and experts
    "deepseek-v2": False,  # latent attention
    "olmo2": True,  # vLLM's Transformers backend
    "llama-awq": True,  # quantised
    "qwen3-embedding": True,  # pooling
}
"""Families. A run shorter than ``make long`` draws one of those with True, and takes all with
False.
"""
DRAWN = pytest.mark.drawn("family", together="families")
EACH = [pytest.param(name, marks=DRAWN if slow else ()) for name, slow in MOST_DIFFERENT.items()]
MODES = ("plain", "mirage", "nowait")

Runs = dict[str, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> list[str]:
    """Families of the selected tests of this file."""
    mine = (item for item in request.session.items if item.path == request.path)
    return list(dict.fromkeys(item.callspec.params["family"] for item in mine))  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def models(asked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all([FAMILIES[name] for name in asked], tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def runs(asked: list[str], models: Path) -> Runs:
    """Results by mode and family; engines run one after the other."""
    return driving.in_modes(MODES, asked, models)


@pytest.fixture(scope="module")
def checked(asked: list[str], models: Path) -> dict[str, dict[str, Any]]:
    return dict(check([FAMILIES[name] for name in asked], models))


def able(plain: dict[str, Any]) -> dict[str, Any]:
    """Output of plain vLLM. Skips the test if vLLM has no kernel for the family on
    this processor.
    """
    if lacks_kernel(why := plain.get("failed")):
        pytest.skip(f"plain vLLM cannot either on this processor: {why}")
    return plain


@pytest.mark.parametrize("family", EACH)
def test_outputs_are_plain_vllms_while_memory_moves(family: str, runs: Runs) -> None:
    plain, ours = able(runs["plain"][family]), runs["mirage"][family]
    assert differences(plain, ours) == []
    if FAMILIES[family].task == "generate":
        assert variety(plain) > 50, "tokens that hardly vary would hide a fault"


@pytest.mark.parametrize("family", EACH)
def test_without_waits_they_differ(family: str, runs: Runs) -> None:
    assert hidden(able(runs["plain"][family]), runs["nowait"][family]) is None


@pytest.mark.parametrize("family", EACH)
def test_check_says_what_the_engine_then_has(
    family: str, runs: Runs, checked: dict[str, dict[str, Any]]
) -> None:
    able(runs["plain"][family])
    assert disagreements(checked[family], runs["mirage"][family]["shape"]) == []
