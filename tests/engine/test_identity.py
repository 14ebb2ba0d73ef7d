"""Bit-identity: remapping at random in mid-request changes no token and no logprob."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from children import must, spawn
from tiny import FAMILIES

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _generate(models: Path, mode: str, families: tuple[str, ...]) -> dict[str, Any]:
    out = models / f"{mode}.json"
    must(spawn("identity.py", models, out, mode, *families))
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def plain(models: Path) -> dict[str, Any]:
    return _generate(models, "plain", FAMILIES)


@pytest.fixture(scope="module", params=["mirage", "mirage-pieces"])
def remapped(models: Path, plain: dict[str, Any], request: Any) -> dict[str, Any]:
    return {"mode": request.param} | _generate(models, request.param, FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_logprobs_equal_plain_vllm(
    family: str, plain: dict[str, Any], remapped: dict[str, Any]
) -> None:
    ours = remapped[family]
    assert ours["rounds"] == plain[family]["rounds"]
    # The comparison means something only if a lot really moved, and prefixes really hit.
    assert len(ours["alphas"]) >= 4 and max(ours["alphas"]) >= 5
    assert {1, 2} <= set(ours["betas"])
    assert ours["grown"] >= 3 and ours["shrunk"] >= 3
    assert ours["bytes_streamed"] > 0
    assert ours["hits"] == plain[family]["hits"] > 0
    assert ours["pieces"] == (remapped["mode"] == "mirage-pieces")


@pytest.mark.parametrize("mode", ["slow", "slow-pieces"])
def test_a_slow_link_changes_no_output(models: Path, plain: dict[str, Any], mode: str) -> None:
    slow = _generate(models, mode, ("llama",))
    assert slow["llama"]["rounds"] == plain["llama"]["rounds"][:1]


@pytest.mark.parametrize("mode", ["nowait", "nowait-pieces"])
def test_without_waits_the_outputs_differ(models: Path, plain: dict[str, Any], mode: str) -> None:
    broken = _generate(models, mode, ("llama",))
    assert broken["llama"]["rounds"] != plain["llama"]["rounds"][:1]
