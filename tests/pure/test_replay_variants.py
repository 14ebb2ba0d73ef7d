"""Columns of a replay: an engine's policy, with tiers or without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mirage.config import Config, Policy
from mirage.simulate.variants import VARIANTS as SIMULATED
from mirage.tools.replay import child
from mirage.tools.replay.policies import (
    VARIANTS,
    PolicyRefused,
    ReplayVariant,
    chosen,
    tiers_unused,
)

pytestmark = pytest.mark.pure

TIERED = {"tiers": {"host": {"bytes": "1MiB"}}}


def config(**more: Any) -> Config:
    tenant = {"name": "a", "model": "m", "share": 50}
    return Config.model_validate({"device": {"memory": "1GiB"}, "tenants": [tenant], **more})


def test_they_are_those_of_the_simulator() -> None:
    for name, variant in VARIANTS.items():
        assert SIMULATED[name].policy is variant.policy
        assert SIMULATED[name].tiers == variant.tiers


def test_all_that_the_configuration_has() -> None:
    assert [v.name for v in chosen(None, config())] == ["static", "pooled", "mirage"]
    assert chosen(None, config(**TIERED)) == list(VARIANTS.values())


def test_each_once_and_in_the_order_given() -> None:
    named = chosen("mirage-tiers, static,mirage-tiers", config(**TIERED))
    assert named == [ReplayVariant(Policy.MIRAGE, tiers=True), ReplayVariant(Policy.STATIC)]


@pytest.mark.parametrize("name", ["magic", "static-tiers", "", "mirage-"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(PolicyRefused, match=f"unknown policy '{name}': choose from static, pooled"):
        chosen(f"mirage,{name}", config(**TIERED))


def test_tiers_that_are_not_there_are_refused() -> None:
    with pytest.raises(PolicyRefused, match=r"'mirage-tiers' needs tiers.*tiers.host.bytes"):
        chosen("static,mirage-tiers", config())


def test_tiers_that_nobody_uses_are_told_of() -> None:
    for names, told in (("pooled,static", True), ("static", False), ("mirage,mirage-tiers", False)):
        variants = chosen(names, config(**TIERED))
        assert (tiers_unused(variants, config(**TIERED)) is not None) == told
        assert tiers_unused(variants, config()) is None


def test_a_server_is_told_to_leave_them_out() -> None:
    for variant in VARIANTS.values():
        words = child.serve_command(Path("c.yaml"), variant, Path("ready"))
        assert words[words.index("--policy") + 1] == variant.policy
        assert ("--no-tiers" in words) != variant.tiers
