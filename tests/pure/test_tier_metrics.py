"""Metrics count hits of each tier apart; disk and peers have metrics only where there are some."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage.config import Policy
from mirage.protocol import Report
from mirage.serve.metrics.registry import rendered
from mirage.serve.metrics.tiers import tier_metrics
from mirage.serve.registry.registry import DeviceSources, Registry, TenantServer
from mirage.tiers.blocks import Name, Rise
from mirage.tiers.contract import Key, Member
from mirage.tiers.core import Core
from mirage.tiers.peer_backing import PeerPlan

pytestmark = pytest.mark.pure

PAGE = 4096
DISK = {
    "held_bytes": 5,
    "capacity_bytes": 9,
    "writing": 0,
    "blocks": 1,
    "evictions": 2,
    "failed": True,
    "direct": True,
    "stored": 3,
    "loaded": 4,
    "unbelieved": 0,
    "refused": 0,
    "errors": 1,
    "stored_bytes": 30,
    "loaded_bytes": 40,
    "found": 0,
}


class Shelf:
    """Stand-in for the tier below the host pool, which has the block "deep" alone."""

    def has(self, name: Name, nbytes: int) -> bool:
        return name.key == b"deep"


def samples(core: Core, disk: dict[str, int | bool] | None) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in tier_metrics(core.state(), disk)
        for sample in family.samples
    }


def test_hits_by_the_tier_that_had_them() -> None:
    core = Core(4 * PAGE, below=Shelf(), peers=PeerPlan({"gpu1": PAGE}))
    me = core.join(Member("a", b"w", PAGE))
    other = core.join(Member("b", b"w", PAGE))
    stored = [Key(b"1"), Key(b"2"), Key(b"3")]
    core.commit(me, core.reserve(me, stored))
    core.seek(me, "r", [*stored, Key(b"deep"), Key(b"nowhere")])
    core.seek(other, "s", [Key(b"deep")])
    (rise,) = [act for act in core.actions() if isinstance(act, Rise)]
    core.risen(rise.name, whole=True)
    found = samples(core, DISK)
    hits = {labels[1:]: n for labels, n in found.items() if labels[0] == "mirage_tier_hits_total"}
    assert {pair: n for pair, n in hits.items() if n} == {
        ("peer", "a"): 1,
        ("host", "a"): 2,
        ("ssd", "a"): 1,
        ("ssd", "b"): 1,
    }
    assert min(hits.values()) == 0
    assert found["mirage_tier_misses_total", "host", "a"] == 1
    assert ("mirage_tier_misses_total", "peer", "a") not in found
    assert found["mirage_tier_bytes", "ssd", "budget"] == 9
    assert found["mirage_ssd_blocks_total", "loaded"] == 4
    assert found["mirage_ssd_bytes_total", "stored"] == 30
    assert found["mirage_ssd_failed",] == 1
    assert found["mirage_peer_bytes", "gpu1", "held"] == PAGE
    core.resize_peer("gpu1", 0)
    assert samples(core, DISK)["mirage_peer_bytes", "gpu1", "owed"] == PAGE


def test_only_what_is_there_is_told_of() -> None:
    names = {labels[0] for labels in samples(Core(PAGE), None)}
    assert not any("peer" in name or "ssd" in name for name in names)


def test_tokens_loaded_are_told_by_the_tier_that_had_them(tmp_path: Path) -> None:
    registry = Registry(Policy.MIRAGE, 1 << 30, {"a": TenantServer("a", tmp_path / "a", 128)})
    registry.reports["a"] = Report(
        1, True, 0, 0, 0, 0, 0, tokens_from_peer=1, tokens_from_host=64, tokens_from_ssd=32
    )
    assert "mirage_tier" not in rendered(registry, {}).decode(), "without a pool"
    registry.sources = DeviceSources(pool=Core(PAGE).state)
    told = rendered(registry, {}).decode()
    for medium, tokens in (("peer", 1), ("host", 64), ("ssd", 32)):
        line = f'mirage_tier_tokens_total{{medium="{medium}",tenant="a"}} {tokens}.0'
        assert line in told.splitlines()


@pytest.mark.parametrize(("failed", "status"), [(True, "failed"), (False, "ok")])
def test_health_says_whether_the_disk_has_failed(failed: bool, status: str) -> None:
    registry = Registry(Policy.MIRAGE, 1, {"a": TenantServer("a", Path("a"), 1)})
    assert "ssd" not in registry.below_health()
    registry.sources = DeviceSources(disk=lambda: {**DISK, "failed": failed})
    assert registry.below_health()["ssd"] == {"status": status}
