"""Tiers below a simulated device: copies that take time, and whole worlds that use them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage import profiles
from mirage.config import ConfigError, validated
from mirage.geometry import footprint
from mirage.simulate import build, run
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.hierarchy import Hierarchy, Speed
from mirage.simulate.lanes import Lane
from mirage.simulate.roofline import PS
from mirage.simulate.variants import variant
from mirage.simulate.world import Observer, World
from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key, Medium, Member
from mirage.tiers.policies import POLICIES
from tests.examples import examples

pytestmark = pytest.mark.pure

KIB4 = 4096
FAST = 4096 * 1e12 / 1000
"""Bytes a second with which a block of 4 KiB takes a nanosecond."""
LENGTH = 512
MODES: dict[str, dict[str, Any]] = {
    "together": {"mode": "spatial"},
    "turns": {"mode": "temporal", "turn_s": 1.0, "drain": False},
}


# -- copies -----------------------------------------------------------------------------


def tiers(**blocks: int) -> Hierarchy:
    """Tiers with `blocks` blocks in each medium; a copy takes a microsecond, and a nanosecond for
    each block.
    """
    speeds = {Medium(m): Speed(n * KIB4, FAST, 10**6) for m, n in blocks.items()}
    hierarchy = Hierarchy(speeds, POLICIES["lru"])
    hierarchy.join(Member("a", b"m", KIB4))
    return hierarchy


def names(*numbers: int) -> list[Name]:
    return [Name(b"m", Key(b"%d" % number)) for number in numbers]


def test_copies_over_a_lane_follow_each_other_and_their_latencies_do_not() -> None:
    lane = Lane(1e12, latency_ps=7)
    assert [lane.copy(0, 10), lane.copy(0, 5), lane.copy(100, 1)] == [17, 22, 108]


def test_a_block_can_be_read_once_its_copy_has_ended() -> None:
    below = tiers(host=8)
    ends = below.store(0, names(1, 2), 0)
    assert list(ends.values()) == [1000 + 10**6, 2000 + 10**6]
    early, late = below.seek(0, 1, names(1, 2), 500), below.seek(0, 2, names(1, 2, 3), 10**7)
    assert [hit.ready for hit in early] == list(ends.values())
    assert [hit.ready for hit in late] == [10**7, 10**7], "the third is not there"
    assert not below.store(0, names(1, 2), 10**7), "held already"


def test_a_block_on_a_peer_is_not_stored_in_host_memory_as_well() -> None:
    below = tiers(peer=2, host=8)
    assert len(below.store(0, names(1, 2, 3), 0)) == 3, "the third has no room on the peer"
    below.settle(10**7)
    assert not below.store(0, names(1, 2, 3), 10**7)
    assert [pool.core.state().blocks for pool in below.pools] == [2, 1]


def test_what_goes_from_host_memory_is_read_from_the_disk_at_its_speed() -> None:
    below = tiers(host=8, ssd=64)
    for number in range(32):
        below.store(0, names(number), number * 10**7)
    now = 33 * 10**7
    hit = below.seek(0, 1, names(0), now)
    assert [h.medium for h in hit] == [Medium.SSD] and hit[0].ready == now + 1000 + 10**6
    below.settle(hit[0].ready)
    again = below.seek(0, 1, names(0), hit[0].ready)
    assert again == [(Medium.SSD, hit[0].ready)], "where this request found it"
    below.leave(0, 1, hit[0].ready)
    assert below.seek(0, 2, names(31), now)[0].medium is Medium.HOST


def test_a_peer_is_filled_first_and_gives_to_host_memory() -> None:
    below = tiers(peer=4, host=32)
    for number in range(12):
        below.store(0, names(number), number * 10**7)
    media = [below.seek(0, n, names(n), 10**9)[0].medium for n in range(12)]
    assert Medium.PEER in media and Medium.HOST in media
    assert media.index(Medium.PEER) > media.index(Medium.HOST), "the oldest went"


@examples(60)
@given(
    sizes=st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(0, 12)),
    asked=st.lists(st.tuples(st.sampled_from("sql"), st.integers(0, 30), st.integers(0, 5000))),
)
def test_no_tier_ever_holds_more_than_its_capacity(sizes, asked) -> None:
    capacities = dict(zip(("peer", "host", "ssd"), sizes, strict=True))
    below, now = tiers(**capacities), 0
    for what, number, wait in asked:
        now += wait * 1000
        if what == "s":
            below.store(0, names(*range(number, number + 3)), now)
        elif what == "q":
            hits = below.seek(0, number % 5, names(number, number + 1), now)
            assert all(hit.ready >= now for hit in hits)
        else:
            below.leave(0, number % 5, now)
        for pool in below.pools:
            state, most = pool.core.state(), capacities[pool.medium.value] * KIB4
            assert state.used_bytes <= most and state.blocks * KIB4 <= most
        assert below.disk is None or below.disk.index.held <= capacities["ssd"] * KIB4


# -- worlds -----------------------------------------------------------------------------


def share(model: str, extra: int) -> float:
    """Share in per cent of a GH200 that holds a model, its least KV memory, and `extra` extents."""
    device = profiles.hardware("gh200")
    shape = profiles.shape(profiles.model(model), device, 16, LENGTH, device.memory_bytes)
    return footprint(shape, 0, shape.min_extents + extra) / device.memory_bytes * 100 + 1e-5


def chats(path: Any, rows: list[tuple[int, int, int]]) -> Any:
    """Write a trace of (session, prompt, output) rows; each prompt of a session contains what was
    said before. Return its path.
    """
    said: dict[int, int] = {}
    with path.open("w") as file:
        for number, (session, prompt, output) in enumerate(rows):
            asked = said.get(session, 0) + prompt
            said[session] = asked + output
            row = {"timestamp": number / 8, "input_length": asked, "output_length": output}
            file.write(json.dumps(row | {"session_id": f"s{session}"}) + "\n")
    return path


def setup(mode: str, file: Any, **changed: Any) -> Setup:
    """Experiment with two models whose shares hold a handful of requests each; `file` is the trace,
    `changed` replaces keys.
    """
    tenants = [
        {"name": "a", "model": "llama-3-8b", "share": share("llama-3-8b", 6)},
        {"name": "b", "model": "opt-6.7b", "share": share("opt-6.7b", 10)},
    ]
    written = {
        "title": mode,
        "tenants": tenants,
        "sharing": MODES[mode],
        "limits": {"max_model_len": LENGTH},
        "workload": {"arrivals": "trace", "file": file, "trace_format": "timed"},
    }
    return Setup(Experiment.model_validate(written | changed))


ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(20, 90), st.integers(2, 60)), min_size=4, max_size=24
)


class Capacity(Observer):
    """Observer that checks after every event that no tier holds more than its capacity."""

    def __init__(self, world: World, hierarchy: Hierarchy) -> None:
        self.hierarchy, self.seen = hierarchy, 0
        world.observer = self

    def happened(self) -> None:
        for pool in self.hierarchy.pools:
            assert pool.core.state().used_bytes <= self.hierarchy.speeds[pool.medium].capacity
        self.seen += 1


@examples(12)
@given(rows=ROWS, mode=st.sampled_from(sorted(MODES)))
def test_tiers_of_no_capacity_change_nothing(tmp_path_factory, rows, mode) -> None:
    file = chats(tmp_path_factory.mktemp("none") / "chats.jsonl", rows)
    nothing = {"host": {"bytes": 0}, "ssd": {"bytes": 0}, "peer": {"bytes": 0}}
    for policy, plain in (("mirage-tiers", "mirage"), ("pooled-tiers", "pooled")):
        empty = run.run(setup(mode, file, tiers=nothing), policy, 0)
        today = run.run(setup(mode, file), plain, 0)
        assert empty | {"policy": plain} == today
    cached = run.run(setup(mode, file, prefix_cache=True), "mirage", 0)
    both = run.run(setup(mode, file, prefix_cache=True, tiers=nothing), "mirage-tiers", 0)
    assert both | {"policy": "mirage"} == cached


@examples(25)
@given(
    rows=ROWS,
    mode=st.sampled_from(sorted(MODES)),
    policy=st.sampled_from(["mirage-tiers", "pooled-tiers"]),
    host=st.integers(1, 600),
    ssd=st.sampled_from([0, 400]),
)
def test_tokens_are_conserved_and_nothing_is_left_behind(
    tmp_path_factory, rows, mode, policy, host, ssd
) -> None:
    file = chats(tmp_path_factory.mktemp("some") / "chats.jsonl", rows)
    sizes = {"host": {"bytes": f"{host}MiB"}, "ssd": {"bytes": f"{ssd}MiB"}}
    made = setup(mode, file, tiers=sizes)
    world = build.world(made, variant(policy), 0)
    hierarchy = next(e.loads._hierarchy for e in world.engines)  # type: ignore[attr-defined]
    watch = Capacity(world, hierarchy)
    world.run()
    world.check()
    assert watch.seen
    for engine in world.engines:
        engine.queues.check_empty()
        assert not engine.loads.under_way and not engine.queues.reuse.shared
    figures = run.metrics(world.engines)
    assert figures["completed"] == len(rows)
    assert figures["total_output_tokens"] == sum(output for _, _, output in _clipped(made, rows))
    assert all(_no_pin_is_left(pool) for pool in hierarchy.pools)


def _clipped(made: Setup, rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    said: dict[int, int] = {}
    found = []
    for session, prompt, output in rows:
        asked = said.get(session, 0) + prompt
        said[session] = asked + output
        kept = min(output, max(LENGTH - asked, LENGTH // 2, 1))
        found.append((session, min(asked, LENGTH - kept), kept))
    return found


def _no_pin_is_left(pool: Any) -> bool:
    return all(account.pinned == 0 for account in map(pool.core.ledger.account, ("a", "b")))


def endless(made: Setup) -> Setup:
    """The same setup with a host tier that holds all blocks, and with a link that takes no time."""
    made.speeds = {m: Speed(1 << 44, 1e21, 0) for m in (Medium.HOST,)}
    fast = profiles.SourcedPositive(value=1e12, source="no such link")
    made.hardware = made.hardware.model_copy(update={"link_mixed_gb_s": fast})
    return made


@examples(25)
@given(rows=ROWS)
@pytest.mark.slow
def test_an_endless_tier_over_an_endless_link_only_helps(tmp_path_factory, rows) -> None:
    """Chats run one request at a time, without a cache, with a prefix cache, and with an endless
    tier: each run is no slower than the one before.

    With several at a time, a request that is ready sooner may make the steps of others longer, and
    the last one may end later.
    """
    file = chats(tmp_path_factory.mktemp("endless") / "chats.jsonl", rows)
    alone = [{"name": "a", "model": "opt-6.7b", "share": share("opt-6.7b", 1), "max_num_seqs": 1}]
    host = {"host": {"bytes": "1GiB"}}
    plain = run.run(setup("together", file, tenants=alone), "pooled", 0)
    cached = run.run(setup("together", file, tenants=alone, prefix_cache=True), "pooled", 0)
    below = endless(setup("together", file, tenants=alone, tiers=host))
    tiered = run.run(below, "pooled-tiers", 0)
    for less, more in ((plain, cached), (cached, tiered)):
        assert less["completed"] == more["completed"] == len(rows)
        assert less["tokens_avoided"] <= more["tokens_avoided"]
        assert less["duration"] >= more["duration"]
        assert less["mean_ttft_ms"] >= more["mean_ttft_ms"] - 1e-9


@cache
def suspended(policy: str, bytes_: str = "64GiB", **tiers_: Any) -> dict[str, Any]:
    """Figures of two models in turns, each with more requests than fit into its memory."""
    tenants = [
        {"name": m, "model": m, "share": share(m, 12), "rate": 12}
        for m in ("llama-3-8b", "opt-6.7b")
    ]
    written = {
        "title": "turns",
        "tenants": tenants,
        "sharing": MODES["turns"],
        "limits": {"max_model_len": LENGTH},
        "workload": {"requests": 160, "lengths": "short"},
        "tiers": {"host": {"bytes": bytes_}, **tiers_},
    }
    return run.run(Setup(Experiment.model_validate(written)), policy, 0)


def test_suspended_requests_are_spilled_and_resume_by_loading() -> None:
    tiered, kept = suspended("mirage-tiers"), suspended("mirage-tiers", spill=False)
    assert tiered["spills"] > 0 and kept["spills"] == 0
    assert tiered["tokens_from_host"] > 0 and tiered["kv_bytes_up"] > 0
    assert tiered["tokens_avoided"] > kept["tokens_avoided"]


def test_late_blocks_are_computed() -> None:
    """The link is so slow that loads of KV blocks last longer than the patience. They count as
    misses, and the requests complete.
    """
    tenants = [{"name": "a", "model": "opt-6.7b", "share": share("opt-6.7b", 2), "rate": 20}]
    written = {
        "title": "slow",
        "tenants": tenants,
        "sharing": MODES["together"],
        "link_mixed_gb_s": 0.02,
        "limits": {"max_model_len": LENGTH},
        "workload": {"requests": 40, "lengths": "sharegpt"},
        "tiers": {"host": {"bytes": "64GiB"}},
    }
    figures = run.run(Setup(Experiment.model_validate(written)), "pooled-tiers", 0)
    assert figures["completed"] == 40 and figures["late_loads"] > 0


def test_loads_share_the_link_with_streamed_layers() -> None:
    """A load of KV blocks gets the part of the link that streamed layers leave in each step, and
    nothing while they need all of it.
    """
    from mirage.simulate.loads import RequestLoad, TierLoads

    loads = TierLoads.__new__(TierLoads)
    loads.under_way, loads._at = [], 0
    loads.pace(1, 4)
    loads.under_way.append(RequestLoad(None, 1, 0, 100, 0, PS))  # type: ignore[arg-type]
    loads._transfer(200)
    assert loads.under_way[0].left == 50
    loads.pace(0, 4)
    loads._transfer(10_000)
    assert loads.under_way[0].left == 50, "layers take all of it"
    loads.pace(1, 1)
    assert loads.next_end() == 10_050


# -- what cannot be simulated -----------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tiers": {"ssd": {"bytes": "1GiB"}}}, "ssd needs host memory above it"),
        ({"tiers": {"host": {"bytes": "9TiB"}}}, "lower it"),
        ({"tiers": {"peer": {"bytes": "1GiB"}}}, "tiers.peer"),
        ({"tiers": {"host": {"bytes": -1}}}, "tiers.host.bytes"),
        ({"policies": ["mirage-tiers"]}, "needs tiers"),
    ],
)
def test_bad_tiers_are_one_line(tmp_path, changed, said) -> None:
    raw = {
        "title": "t",
        "tenants": [{"name": "a", "model": "opt-13b", "share": 90, "rate": 1}],
        "workload": {"requests": 3},
        **changed,
    }
    with pytest.raises(ConfigError) as found:
        Setup(validated(Experiment, raw, tmp_path / "experiment.yaml"))
    assert said in str(found.value) and "\n" not in str(found.value)


def test_engines_without_tiers_have_no_loads() -> None:
    made = Setup(
        Experiment.model_validate(
            {
                "title": "plain",
                "tenants": [{"name": "a", "model": "opt-13b", "share": 90, "rate": 1}],
                "workload": {"requests": 3},
            }
        )
    )
    engine: Engine = build.world(made, variant("mirage"), 0).engines[0]
    assert not engine.loads.under_way and engine.queues.reuse.growth(7) == 7
