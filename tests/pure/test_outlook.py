"""Note of `mirage check` about a machine on which moving layers would gain little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ablations import ablated
from mirage.config import (
    Config,
    ConfigError,
    DeviceSection,
    HostTier,
    Policy,
    SharingSection,
    TenantSection,
    TiersSection,
)
from mirage.control.lending import worth_lending
from mirage.profiles import of_device
from mirage.serve.fit.fit import Fit
from mirage.serve.fit.outlook import Speeds, outlook
from mirage.serve.fit.page_size import PageSize
from mirage.serve.launch.preflight import speeds
from mirage.units import GIB

pytestmark = pytest.mark.pure

GB = 10**9
H100 = Speeds(51e9, 2.68e12)
GH200 = Speeds(427e9, 3.2e12)


def config(mode: str = "temporal", turn_s: float = 1.0, policy: Policy = Policy.MIRAGE) -> Config:
    return Config(
        device=DeviceSection(memory=80 * GB),
        tenants=[TenantSection(name=n, model=Path(n), share=50) for n in "ab"],
        sharing=SharingSection(mode=mode, turn_s=turn_s),
        policy=policy,
    )


def fits(movable: int = 30) -> dict[str, Fit]:
    """Results of fitting two models of 20 GB each, each with a grant of 40 GB; `movable` of their
    40 layers may go.
    """
    one = Fit(
        page=PageSize(1 << 16),
        grant_bytes=40 * GB,
        layers=40,
        layer_bytes=GB // 2,
        fixed_bytes=0,
        block_bytes=1 << 20,
        extent_blocks=2,
        base_blocks=1000,
        max_blocks=9000,
        min_blocks=4,
        movable_layers=movable,
    )
    return {"a": one, "b": one}


def test_a_short_turn_over_a_slow_link_wins_little_and_a_longer_one_would() -> None:
    (line,) = outlook(config(turn_s=1.0), fits(), H100)
    assert "the link loads 51 GB in one" in line
    assert "is 40 GB" in line
    assert "Turns from 3.9 s" in line
    assert "too short for layers to pay, unless many requests are preempted: " in line
    assert line.endswith("would pay")
    assert outlook(config(turn_s=4.0), fits(), H100) == []
    assert worth_lending(40 * GB, 4.0 * 51e9) >= 4 * GB


def test_turns_in_which_no_preemption_is_spared_had_better_be_pooled() -> None:
    """Preemptions are no reason to lend layers if turns drain, or if KV goes below the device."""
    plain = config(turn_s=1.0)
    drained = plain.sharing.model_copy(update={"drain": True})
    tiers = TiersSection(host=HostTier(bytes=GB))
    for more in ({"sharing": drained}, {"tiers": tiers}):
        (line,) = outlook(plain.model_copy(update=more), fits(), H100)
        assert "too short for layers to pay: " in line
        assert line.endswith("would pay, or use pooled")


def test_a_fast_link_is_worth_no_word() -> None:
    for mode in ("temporal", "spatial"):
        assert outlook(config(mode), fits(), GH200) == []


def test_at_once_no_layer_hides_over_pcie() -> None:
    (line,) = outlook(config("spatial"), fits(), H100)
    assert "over 51 GB/s no layer hides" in line
    assert "30 s" in line


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_few_layers_that_move_win_little_on_any_link(mode: str) -> None:
    (line,) = outlook(config(mode), fits(movable=3), GH200)
    assert "less than a tenth" in line


@pytest.mark.parametrize(
    ("changes", "rules", "words"),
    [
        ({"floor_layers": 39}, {}, "of its 40, 39 stay (floor_layers) and 2 are for streaming: "
         "lower floor_layers to 37 or less"),
        ({"floor_layers": 38}, {}, "of its 40, 38 stay (floor_layers) and 2 are for streaming: "),
        ({"floor_layers": 39}, {"stream_slots": 1}, "(floor_layers) and 1 are for streaming: "),
        ({"max_percent": 2}, {}, "max_percent 2 of its 40 is not one"),
        ({"floor_layers": 38}, {"stream_slots": 1}, ""),
        ({"floor_layers": 37}, {}, ""),
        ({"floor_layers": 40, "max_percent": 0}, {}, ""),
    ],
)  # fmt: skip
def test_a_tenant_that_never_gives_a_layer_is_told(
    changes: dict[str, float], rules: dict[str, Any], words: str
) -> None:
    before = config("spatial")
    changed = before.tenants[0].model_copy(update=changes)
    given = before.model_copy(update={"tenants": [changed, before.tenants[1]]})
    movable = int(40 * given.max_percent(changed) / 100)
    both = fits()
    both["a"] = replace(both["a"], movable_layers=movable)
    with ablated(**rules):
        lines = outlook(given, both, Speeds())
    assert len(lines) == bool(words)
    assert not words or words in lines[0]
    assert not words or lines[0].startswith("note: tenant 'a' never gives a layer: ")


def test_nothing_is_said_of_what_is_not_known_or_not_asked_for() -> None:
    assert outlook(config(), fits(), Speeds()) == []
    assert outlook(config("spatial"), fits(), Speeds(link=1e9)) == []
    for policy in (Policy.POOLED, Policy.STATIC):
        assert outlook(config(policy=policy), fits(), H100) == []


@pytest.mark.parametrize(
    ("name", "title"),
    [("NVIDIA GH200 480GB", "GH200"), ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100")],
)
def test_a_gpu_is_known_by_its_name(name: str, title: str) -> None:
    profile = of_device(name)
    assert profile is not None
    assert title in profile.title.split()[1]


def test_an_unknown_gpu_has_no_profile() -> None:
    assert of_device("NVIDIA GeForce RTX 4090") is None


def test_a_profile_of_its_own_says_what_a_machine_can(tmp_path: Path) -> None:
    assert speeds(DeviceSection(memory=GIB, profile="a100")) == Speeds(26.3e9, 2039e9 * 0.8)
    assert speeds(DeviceSection(memory=GIB, profile="a100", link_gb_s=0.5)).link == 0.5e9
    # Of the bundled host's steps none was bound by memory: that is no bandwidth.
    assert speeds(DeviceSection(memory=GIB, profile="host")).memory is None
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        speeds(DeviceSection(memory=GIB, profile=str(tmp_path / "none.yaml")))
