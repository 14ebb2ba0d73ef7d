"""Bit-identity of the families that differ most; `make long` has all of them."""

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
    "granite4-hybrid": True,  # state space and convolutions among attention and experts
    "deepseek-v2": False,  # latent attention
    "olmo2": True,  # vLLM's Transformers backend
    "llama-awq": True,  # quantised
    "qwen3-embedding": True,  # pooling
}
"""Families by whether one of them is drawn."""
DRAWN = pytest.mark.drawn("family", together="families")
EACH = [pytest.param(name, marks=DRAWN if slow else ()) for name, slow in MOST_DIFFERENT.items()]
MODES = ("plain", "mirage", "nowait")

Runs = dict[str, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> list[str]:
    """The families of the tests that are selected."""
    mine = (item for item in request.session.items if item.path == request.path)
    return list(dict.fromkeys(item.callspec.params["family"] for item in mine))  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def models(asked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all([FAMILIES[name] for name in asked], tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def runs(asked: list[str], models: Path) -> Runs:
    """By mode and family, one engine at a time."""
    return driving.in_modes(MODES, asked, models)


@pytest.fixture(scope="module")
def checked(asked: list[str], models: Path) -> dict[str, dict[str, Any]]:
    return dict(check([FAMILIES[name] for name in asked], models))


def able(plain: dict[str, Any]) -> dict[str, Any]:
    """What plain vLLM said; skips what it has no kernel for on this processor."""
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
