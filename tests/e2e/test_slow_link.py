"""Turns that do not drain over a link as slow as PCIe for a 13B model, with real engines: no harm.

The tests compare counts, not times: bytes over the link are what made requests three times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bursts import replayed

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

LINK_GB_S = 0.06
REQUESTS = 60
UNCAPPED = ("decode_cap=false",)
"""Ablation that restores Algorithm 1 as published: layers go to any tenant whose requests wait,
whatever the way back costs.
"""


def runs(
    folder: Path, policies: str, ablations: Sequence[str] = (), link: float = LINK_GB_S
) -> dict[str, dict[str, Any]]:
    """Figures of one burst of requests by policy. All policies must give the same outputs."""
    report = replayed(
        folder,
        policies,
        hot_share=0.5,
        device={"link_gb_s": link},
        sharing={"mode": "temporal", "turn_s": 0.5, "drain": False},
        ablations=ablations,
    )
    assert not report["outputs_different"]
    return {run["policy"]: run for run in report["runs"]}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return runs(tmp_path_factory.mktemp("before"), "mirage", UNCAPPED)["mirage"]


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return runs(tmp_path_factory.mktemp("now"), "pooled,mirage")


def test_without_a_price_layers_cross_the_link_again_and_again(before: dict[str, Any]) -> None:
    """Control: with the former rules, which put no price on loads, layers are lent and streamed
    often. Otherwise the load would prove nothing.
    """
    assert before["completed"] == REQUESTS
    assert before["layers_remapped_max"] > 2
    assert before["bytes_streamed"] > 100 << 20


def test_what_does_not_pay_is_not_lent(
    before: dict[str, Any], now: dict[str, dict[str, Any]]
) -> None:
    assert [run["completed"] for run in now.values()] == [REQUESTS, REQUESTS]
    assert now["mirage"]["bytes_streamed"] < before["bytes_streamed"] / 20


def test_over_a_fast_link_layers_are_lent(tmp_path: Path) -> None:
    """Control: over a fast link the same load does lend layers."""
    fast = runs(tmp_path, "mirage", link=5.0)["mirage"]
    assert fast["completed"] == REQUESTS
    assert fast["layers_remapped_max"] > 2
