"""Rows of `make gpu-bench` that measure driver or system without an engine, over the stand-in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu import coherent, prices
from benchmarks.gpu.bench import dry
from benchmarks.gpu.rows import Skipped
from tests.vmm.conftest import standin
from vmm.cuda_device import device_facts
from vmm.host import host_buffer

pytestmark = pytest.mark.vmm


def test_each_call_has_its_price_idle_and_beside_work_and_nothing_is_left() -> None:
    stand = standin()
    bench = dry()
    row = prices.of_calls(bench)
    assert row.details["us"].keys() == set(prices.CALLS)
    assert all(price > 0 for both in row.details["us"].values() for price in both)
    calls = stand.calls()
    rounds = 2 * bench.rounds
    for name in ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemRelease"):
        assert calls[name] > rounds, name
    assert stand.used_bytes == 0
    assert not any(stand.leaks().values()), stand.leaks()


def test_c2c_is_a_figure_of_such_a_machine_alone() -> None:
    standin()
    bench = dry()
    facts = device_facts(0)
    with pytest.raises(Skipped, match="PCIe alone"):
        coherent.link(bench)
    row = coherent._row(bench, replace(facts, host_node=None))
    assert row.details["gb_s"] > 0 and "GB/s" in row.value


MAPS = """\
55d0 default file=/usr/bin/python3 mapped=3 N0=3
7f00 bind:1 anon=20 dirty=20 N0=4 N1=16 kernelpagesize_kB=64
7fff default stack anon=3 N0=3
"""


def test_pages_of_a_mapping_are_told_by_their_node(tmp_path: Path) -> None:
    maps = tmp_path / "numa_maps"
    assert coherent.nodes_of(0x7F00, maps) == {}, "there is none"
    maps.write_text(MAPS)
    assert coherent.nodes_of(0x7F10, maps) == {0: 4, 1: 16}
    assert coherent.nodes_of(0x1, maps) == {}


def test_a_master_that_lies_far_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    standin()
    bench = dry()
    facts = replace(device_facts(0), host_node=0)
    monkeypatch.setattr(coherent, "AIM_GB_S", 0.0)
    for nodes, holds in (({0: 9}, True), ({0: 8, 1: 1}, False)):
        monkeypatch.setattr(coherent, "nodes_of", lambda address, nodes=nodes: nodes)
        row = coherent._row(bench, facts)
        assert row.holds is holds, row.value
    assert "8 pages on node 0, 1 pages on node 1, nearest is 0" in row.value


def test_this_system_tells_nodes_of_its_own_memory_or_none() -> None:
    buffer = host_buffer(4 << 20)
    buffer.tensor().fill_(1)
    assert all(pages > 0 for pages in coherent.nodes_of(buffer.address).values())
    buffer.close()
