"""Mixtures in simulated worlds: how experts are used, what giving them costs and brings."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage import profiles
from mirage.config import ConfigError
from mirage.geometry import footprint
from mirage.simulate import build, run
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.routing import Observed, RouterModel, Routers
from mirage.simulate.variants import variant
from mirage.simulate.world import Observer, World
from mirage.streaming.routing import OBSERVE_CALLS
from tests.examples import examples

pytestmark = pytest.mark.pure

MODEL = profiles.model("olmoe-1b-7b")
MACHINES = ("h100", "gh200")


@cache
def setup(
    machine: str = "h100",
    skew: float = 3.0,
    rate: float = 40.0,
    requests: int = 80,
    extents: int = 60,
    beside: bool = False,
    mode: str = "spatial",
) -> Setup:
    """Experiment with a mixture of experts whose share holds few requests, and with a dense model
    beside it if `beside`.
    """
    hardware = profiles.hardware(machine)
    names = ["olmoe-1b-7b", *(["llama-3-8b"] if beside else [])]
    tenants = []
    for name in names:
        shape = profiles.shape(profiles.model(name), hardware, 16, 512, hardware.memory_bytes)
        held = footprint(shape, 0, shape.min_extents + extents)
        share = held / hardware.memory_bytes * 100 + 1e-5
        tenants.append({"name": name, "model": name, "share": share, "rate": rate})
    written: dict[str, Any] = {
        "title": "mixture",
        "hardware": machine,
        "tenants": tenants,
        "sharing": {"mode": mode} | ({"turn_s": 0.5} if mode == "temporal" else {}),
        "limits": {"max_model_len": 512},
        "workload": {"requests": requests, "lengths": "short"},
        "routing": {"skew": skew},
        "policies": ["mirage", "mirage-experts"],
    }
    return Setup(Experiment.model_validate(written))


class Watch(Observer):
    """Observer that checks after each event: memory is conserved, no more is given away than there
    is, and no tenant gives layers and experts at once.
    """

    def __init__(self, world: World) -> None:
        self.world, self.most = world, 0
        world.observer = self

    def happened(self) -> None:
        self.world.check()
        for engine in self.world.engines:
            holding = engine.holding
            assert 0 <= holding.experts <= holding.shape.movable_experts
            assert not (holding.experts and holding.layers_remapped)
            self.most = max(self.most, holding.experts)


# -- routing ----------------------------------------------------------------------------


@given(st.floats(0, 20), st.integers(0, 9), st.integers(1, 5000))
@examples(60)
def test_a_token_needs_as_many_experts_as_the_model_has_active_ones(
    skew: float, seed: int, tokens: int
) -> None:
    routers = Routers(MODEL, RouterModel(skew=skew), f"{seed}")
    assert np.allclose(routers.needed.sum(axis=1), MODEL.active_experts)
    assert routers.needed.min() >= 0 and routers.needed.max() <= 1
    routed = routers.routed(tokens)
    assert routed[0] == 0 and len(routed) == MODEL.experts + 1
    steps = np.diff(routed)
    assert (steps >= -1e-9).all() and (steps <= MODEL.layers + 1e-9).all()
    assert (np.diff(steps) >= -1e-6).all(), "the rarest ones come first"
    more = np.array(routers.routed(tokens + 1))
    assert (more >= np.array(routed) - 1e-9).all()


def test_even_routing_needs_all_alike() -> None:
    routers = Routers(MODEL, RouterModel(skew=0), "0")
    assert np.allclose(routers.needed, MODEL.active_experts / MODEL.experts)
    assert routers.routed(1)[4] == pytest.approx(4 * MODEL.layers / 8)


def test_layers_differ_and_a_seed_is_the_same_again() -> None:
    one, same, other = (Routers(MODEL, RouterModel(skew=2), s).needed for s in ("1", "1", "2"))
    assert (one == same).all() and not (one == other).all()
    assert len({row.tobytes() for row in one}) == MODEL.layers


def test_what_is_observed_follows_what_is_routed() -> None:
    routers = Routers(MODEL, RouterModel(skew=2), "0")
    observed = Observed(routers)
    observed.step(10, OBSERVE_CALLS - 1)
    assert observed.routed() == ()
    observed.step(10, 1)
    assert observed.routed() == pytest.approx(routers.routed(10))
    observed.step(500, 5000)
    assert observed.routed() == pytest.approx(routers.routed(500))


def test_a_span_is_observed_as_its_steps_are() -> None:
    routers = Routers(MODEL, RouterModel(skew=2), "0")
    spans, single = Observed(routers), Observed(routers)
    for tokens, steps in ((10, 40), (200, 3), (30, 60)):
        spans.step(tokens, steps)
        for _ in range(steps):
            single.step(tokens, 1)
    assert spans.routed() == pytest.approx(single.routed())


# -- worlds -----------------------------------------------------------------------------

WORLD = st.fixed_dictionaries(
    {
        "machine": st.sampled_from(MACHINES),
        "skew": st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0]),
        "rate": st.sampled_from([5.0, 40.0]),
        "requests": st.sampled_from([20, 60]),
        "extents": st.sampled_from([0, 20, 100]),
        "beside": st.booleans(),
        "mode": st.sampled_from(["spatial", "temporal"]),
    }
)


@given(WORLD, st.integers(0, 3))
@examples(30)
def test_no_more_is_given_than_there_is(world: dict[str, Any], seed: int) -> None:
    made = setup(**world)
    watched = build.world(made, variant("mirage-experts"), seed)
    Watch(watched)
    watched.run()
    completed = sum(engine.tally.counters.completed for engine in watched.engines)
    assert completed == world["requests"]


@given(WORLD)
@examples(12)
def test_many_steps_at_once_are_as_good_as_one_by_one(world: dict[str, Any]) -> None:
    made = setup(**world | {"requests": 20})
    one, other = (run.run(made, "mirage-experts", 0, skipping=skips) for skips in (True, False))
    # Experts loaded and observed are sums of floats: in another order.
    loads = one.pop("expert_loads"), other.pop("expert_loads")
    assert loads[0] == pytest.approx(loads[1], rel=1e-6, abs=1e-6)
    keys = ("completed", "duration", "steps", "preemptions", "mean_ttft_ms", "mean_itl_ms")
    assert [one[key] for key in keys] == pytest.approx([other[key] for key in keys], rel=1e-4)


@pytest.mark.parametrize("machine", MACHINES)
def test_even_routing_gives_nothing(machine: str) -> None:
    made = setup(machine, skew=0)
    plain, experts = (run.run(made, policy, 0) for policy in ("mirage", "mirage-experts"))
    assert plain.pop("policy") != experts.pop("policy")
    assert experts == plain and not experts["experts_remapped_max"]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("skew", [1.0, 2.0, 3.0, 4.0])
def test_preferred_experts_cost_no_throughput(machine: str, skew: float) -> None:
    """With experts preferred to layers, throughput over four seeds is on average at least 0.98 of
    that with layers alone. A single short world may lose 2 %.
    """
    made = setup(machine, skew)
    ratios = []
    for seed in range(4):
        plain, experts = (run.run(made, policy, seed) for policy in ("mirage", "mirage-experts"))
        ratios.append(experts["output_throughput"] / plain["output_throughput"])
    assert fmean(ratios) >= 0.98


def test_strong_preferences_bring_throughput_where_no_layer_hides() -> None:
    made = setup(skew=4.0)
    plain, experts = (run.run(made, policy, 0) for policy in ("mirage", "mirage-experts"))
    assert not plain["layers_remapped_max"] and experts["experts_remapped_max"]
    assert experts["output_throughput"] > 1.1 * plain["output_throughput"]
    assert experts["preemptions"] < plain["preemptions"]


# -- what is asked ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"routing": None}, "policy 'mirage-experts' needs to know.*write routing.skew"),
        (
            {"layer_parts": 2},
            "gives experts, and those of 'olmoe-1b-7b' stay: layers move in parts",
        ),
    ],
)
def test_who_cannot_give_experts_is_told(changes: dict[str, Any], said: str) -> None:
    written = setup().experiment.model_copy(update=changes)
    with pytest.raises(ConfigError, match=said):
        Setup(written)


def test_experts_of_half_pages_stay() -> None:
    tenant = {"name": "qwen", "model": "qwen3-30b-a3b", "share": 90, "rate": 1}
    written = {"title": "q", "hardware": "h100", "tenants": [tenant], "workload": {"requests": 1}}
    written |= {"routing": {"skew": 2}, "policies": ["mirage-experts"]}
    with pytest.raises(ConfigError, match="those of 'qwen' stay: 3145728 bytes of an expert"):
        Setup(Experiment.model_validate(written))


def test_a_model_without_experts_has_none_to_give() -> None:
    tenant = {"name": "llama", "model": "llama-3-8b", "share": 90, "rate": 1}
    written = {"title": "q", "tenants": [tenant], "workload": {"requests": 1}}
    with pytest.raises(ConfigError, match="no tenant's model has any"):
        Setup(Experiment.model_validate(written | {"policies": ["mirage-experts"]}))
