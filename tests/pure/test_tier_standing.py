"""The section `tiers` of a configuration, and the priority class of each tenant in the pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from model_facts import full_attention, make_facts

from mirage.config import Config, ConfigError, HostTier, PeerTier, Policy, validated
from mirage.doctor import disk
from mirage.facts import ExpertFacts, KVGroup, KVGroups
from mirage.protocol import Report
from mirage.serve.fit.fit import fit
from mirage.serve.fit.tier_room import hierarchy
from mirage.serve.launch import preflight
from mirage.tiers.ledger import Due, PriorityClass, TierLedger
from mirage.tiers.standing import RECENT_S, Standings
from mirage.units import GIB, MIB
from vmm.host_memory import HostMemory

pytestmark = pytest.mark.pure
ACTIVE, RECENT, IDLE = PriorityClass.ACTIVE, PriorityClass.RECENT, PriorityClass.IDLE
EVICTABLE = PriorityClass.EVICTABLE


def make_config(tiers: Any, **changes: Any) -> Config:
    tenants = [
        {"name": n, "model": f"/m/{n}", "share": 30, "max_model_len": 100, "priority": p}
        for n, p in (("a", 0), ("b", 5))
    ]
    device = {"memory": "64MiB"}
    raw = {"device": device, "tenants": tenants, "tiers": tiers} | changes
    return validated(Config, raw, Path("c.yaml"))


def test_sizes_are_read_as_everywhere() -> None:
    assert make_config({"host": {"bytes": "4GiB"}}).host_tier == HostTier(bytes=4 * GIB)
    assert make_config({"host": {"bytes": "1MiB", "policy": "arc"}}).tiers.host.policy == "arc"
    assert make_config({}).host_tier is None
    assert make_config({"host": {"bytes": "4GiB"}}, policy="static").host_tier is None


@pytest.mark.parametrize(
    ("tiers", "words"),
    [
        ({"host": {}}, "tiers.host.bytes: it is missing"),
        ({"host": {"bytes": "0"}}, "tiers.host.bytes: "),
        ({"host": {"bytes": "4 apples"}}, "'4 apples' is not a size"),
        ({"host": {"bytes": "1GiB", "policy": "mru"}}, "tiers.host.policy: "),
        ({"hosts": {}}, "unknown key 'tiers.hosts'"),
        ({"ssd": {"directory": "/d", "bytes": "1GiB"}}, "ssd needs a host pool above it"),
        ({"host": {"bytes": "1GiB"}, "ssd": {"bytes": "1GiB"}}, "tiers.ssd.directory: it is miss"),
        (
            {"host": {"bytes": "1GiB"}, "ssd": {"directory": "", "bytes": "1GiB"}},
            "tiers.ssd.directory: it is empty: name a path",
        ),
    ],
)
def test_what_is_no_tier_is_refused(tiers: Any, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_config(tiers)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_more_than_the_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "host_memory", lambda: HostMemory(100 * MIB))
    preflight._check_host_tier(make_config({"host": {"bytes": "36MiB"}}))
    with pytest.raises(ConfigError, match=r"37.0 MiB beside device.memory 64.0 MiB.*100.0 MiB"):
        preflight._check_host_tier(make_config({"host": {"bytes": "37MiB"}}))
    preflight._check_host_tier(make_config({"host": {"bytes": "37MiB"}}, policy="static"))
    peer = {"devices": {"gpu1": "1MiB", "gpu2": "1MiB"}}
    with pytest.raises(ConfigError, match=r"and tiers.peer 2.0 MiB, this machine has"):
        preflight._check_host_tier(make_config({"host": {"bytes": "35MiB"}, "peer": peer}))


def with_disk(folder: Path, nbytes: str = "1MiB", **changes: Any) -> Config:
    ssd = {"directory": str(folder), "bytes": nbytes}
    return make_config({"host": {"bytes": "1MiB"}, "ssd": ssd}, **changes)


def test_a_disk_that_cannot_be_used_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    preflight._check_ssd_tier(with_disk(tmp_path / "new" / "folder"))
    assert not (tmp_path / "new").exists()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"cannot be written \(.*file is no folder\)"):
            preflight._check_ssd_tier(with_disk(folder))
        preflight._check_ssd_tier(with_disk(folder, policy="static"))
    with pytest.raises(ConfigError, match=r"tiers.ssd.bytes is .* TiB, the disk of .*: lower it"):
        preflight._check_ssd_tier(with_disk(tmp_path, "900000TiB"))
    with pytest.raises(ConfigError, match=r"/proc/x: it cannot be written \(.*\): name another"):
        preflight._check_ssd_tier(with_disk(Path("/proc/x")))


def test_a_disk_has_to_have_room_beside_what_an_earlier_run_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ssd"
    folder.mkdir()
    monkeypatch.setattr(
        preflight.shutil, "disk_usage", lambda _: SimpleNamespace(total=100 * MIB, free=3 * MIB)
    )
    with pytest.raises(ConfigError, match=r"is 4.0 MiB, the disk of .* has 3.0 MiB left: make ro"):
        preflight._check_ssd_tier(with_disk(folder, "4MiB"))
    (folder / "kv-4096.blocks").write_bytes(bytes(2 * MIB))
    (folder / "other").write_bytes(bytes(8 * MIB))
    preflight._check_ssd_tier(with_disk(folder, "4MiB"))
    with pytest.raises(ConfigError, match=r"is 6.0 MiB"):
        preflight._check_ssd_tier(with_disk(folder, "6MiB"))


def test_a_store_of_weights_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    config = make_config({})
    for store, is_right in ((tmp_path / "new", True), (Path("/proc/x"), False)):
        weights = config.weights.model_copy(update={"store": store})
        one = config.model_copy(update={"weights": weights})
        if is_right:
            preflight._check_weights_store(one)
            continue
        with pytest.raises(ConfigError, match=r"weights.store /proc/x: it cannot be written"):
            preflight._check_weights_store(one)


def test_a_folder_out_of_sight_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", hidden)
    with pytest.raises(ConfigError, match=r"cannot be written \(.*ssd: Permission denied\)"):
        preflight._check_ssd_tier(with_disk(tmp_path / "ssd"))
    (found,) = disk.findings(tmp_path / "ssd")
    assert "Permission denied" in found.found


def test_check_says_what_fits() -> None:
    config = make_config({"host": {"bytes": "12MiB"}})
    window = KVGroup("sliding_window", 4, 32, 3)
    two = make_facts(4, kv=KVGroups((full_attention(4, 100), window)))
    fits, _ = fit(config, {"a": make_facts(4), "b": two})
    assert hierarchy(config, fits) == [
        "host pool 12.0 MiB for KV blocks that leave the device, lru",
        "a: up to 96 KV blocks (3072 tokens), 28 of them its share",
        "b: up to 96 KV blocks (13 requests of 100 tokens), 28 of them its share",
    ]
    ssd = {"directory": "/d", "bytes": "1GiB"}
    told = hierarchy(make_config({"host": {"bytes": "12MiB"}, "ssd": ssd}), fits)
    assert told[3:] == [
        "ssd 1.0 GiB in /d below it, gone with the server; up to 7943 KV blocks of a, 7943 of b"
    ]
    peer = PeerTier.model_validate({"devices": {"x": {"device": 1, "bytes": "2MiB"}}})
    tiers = config.tiers.model_copy(update={"peer": peer})
    told = hierarchy(config.model_copy(update={"tiers": tiers}), fits)
    wanted_back = "what they want back is copied to host memory"
    assert told[3:] == [
        f"peers above it: x 2.0 MiB of GPU 1; {wanted_back}; up to 16 KV blocks of a, 16 of b"
    ]
    mixture = replace(fits["b"], experts=ExpertFacts(4, 8, (1 << 16, 1 << 17)))
    told = hierarchy(config.model_copy(update={"tiers": tiers}), {**fits, "b": mixture})
    # b has 30 % of 2 MiB.
    assert told[4:] == ["b: copies of up to 3 of 32 experts on peers"]
    assert hierarchy(make_config({}), fits) == []
    static = config.model_copy(update={"policy": Policy.STATIC})
    assert hierarchy(static, fits) == [
        "host pool: not used, policy static keeps engines as they are"
    ]


def test_check_says_where_not_even_a_block_fits() -> None:
    fits, _ = fit(make_config({}), {"a": make_facts(4)})
    tiers = {
        "host": {"bytes": "64KiB"},
        "peer": {"devices": {"gpu1": "100KiB", "gpu2": "100KiB"}},
        "ssd": {"directory": "/d", "bytes": "128KiB"},
    }
    small = hierarchy(make_config(tiers), fits)
    assert small[1] == "a: too small for a KV block of 0.1 MiB: raise tiers.host.bytes"
    assert all(
        line.endswith("; too small for a KV block of a: raise its bytes") for line in small[2:]
    )
    tiers["peer"]["devices"]["gpu2"] = "256KiB"
    tiers["ssd"]["bytes"] = "132KiB"
    larger = hierarchy(make_config(tiers), fits)
    assert larger[2].endswith("; up to 2 KV blocks of a")
    assert larger[3].endswith("; up to 1 KV blocks of a")


def report(work: int, *, turn: bool = True) -> Report:
    return Report(1, turn, 0, 0, 0, 0, 0, waiting=work)


def test_a_tenant_falls_from_class_to_class() -> None:
    standings = Standings()
    busy, quiet = {"a": report(1), "b": report(0)}, {"a": report(0), "b": report(0)}
    assert standings.changes("ab", busy, (), 0.0) == {"a": ACTIVE, "b": IDLE}
    assert standings.changes("ab", busy, (), 1.0) == {}
    assert standings.changes("ab", quiet, (), 2.0) == {"a": RECENT}
    assert standings.changes("ab", quiet, (), 1.0 + RECENT_S) == {}
    assert standings.changes("ab", quiet, (), 1.5 + RECENT_S) == {"a": IDLE}
    assert standings.changes("ab", {}, ("b",), 99.0) == {"b": EVICTABLE}
    assert standings.changes("ab", busy, (), 100.0) == {"a": ACTIVE, "b": IDLE}


def test_who_waits_for_its_turn_is_recent() -> None:
    standings = Standings()
    assert standings.changes("a", {"a": report(3, turn=False)}, (), 0.0) == {"a": RECENT}
    assert standings.changes("a", {"a": report(3)}, (), 1.0) == {"a": ACTIVE}


def test_a_share_is_per_cent_of_the_medium() -> None:
    book = TierLedger(60)
    for name, share in (("a", 50), ("b", 30), ("c", 10)):
        book.set(name, due=Due(share=share))
    assert [book.share(name) for name in "abc"] == [30, 18, 6]
    book.set("a", standing=EVICTABLE)
    assert [book.share(name) for name in "abc"] == [0, 18, 6], "what it leaves is borrowed"
    book.resize(20)
    assert [book.share(name) for name in "abc"] == [0, 6, 2]


def test_shares_beyond_the_whole_medium_count_in_proportion() -> None:
    book = TierLedger(60)
    for name, priority in (("a", -3), ("b", 100), ("c", -3)):
        book.set(name, due=Due(priority))
    assert [book.share(name) for name in "abc"] == [20, 20, 20], "a priority says who yields first"
    book.set("b", standing=EVICTABLE)
    assert [book.share(name) for name in "abc"] == [30, 0, 30]
