"""Simulated worlds with more models than fit: which are awake, and the time to wake one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from mirage.config import ConfigError, Policy
from mirage.control.roster.states import LifeState
from mirage.simulate import build
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.coming import Coming
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.roofline import PS
from mirage.simulate.rostered import RosteredDomain
from mirage.simulate.run import run
from mirage.simulate.variants import VARIANTS, Variant
from mirage.simulate.world import Observer, World

pytestmark = pytest.mark.pure
WAYS = {
    **VARIANTS,
    "swap": Variant("swap", Policy.MIRAGE, coming=Coming(sleeps=False)),
    "copies": Variant("copies", Policy.MIRAGE, coming=Coming(copies=True)),
}
MODELS = ("llama-3-8b", "qwen2.5-7b", "opt-6.7b", "llama-2-7b")


def setup(tenants: list[dict[str, Any]], **more: Any) -> Setup:
    """Experiment with these tenants on an H100, with 60 short requests each; `more` replaces its
    keys.
    """
    written = {
        "title": "many",
        "hardware": "h100",
        "tenants": tenants,
        "limits": {"max_model_len": 512},
        "workload": {"arrivals": "poisson", "requests": 60, "lengths": "short"},
        **more,
    }
    return Setup(Experiment.model_validate(written), known=WAYS)


def zipf(count: int, rate: float, **more: Any) -> list[dict[str, Any]]:
    weights = [1 / (place + 1) for place in range(count)]
    return [
        {
            "name": f"m{place}",
            "model": MODELS[place % len(MODELS)],
            "rate": rate * weight / sum(weights),
            **more,
        }
        for place, weight in enumerate(weights)
    ]


@pytest.mark.parametrize("policy", ["static", "pooled", "mirage"])
def test_where_all_fit_the_roster_changes_no_digit(policy: str) -> None:
    tenants = zipf(2, 20.0, share=50.0)
    with_roster, without = setup(tenants, roster={}), setup(tenants)
    assert run(with_roster, policy, 3) == run(without, policy, 3)


@dataclass
class RosterWatch(Observer):
    """Observer that checks the memory and the states of a world after each event."""

    world: World
    most_awake: int = 0
    slept: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    done: list[tuple[str, SimulatedRequest]] = field(default_factory=list)

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        self.done.append((engine.name, request))

    def began(self, engine: Engine) -> None:
        state = self._domain.roster.members[engine.name].state
        assert state in (LifeState.READY, LifeState.DRAINING), f"{engine.name} {state} steps"

    def happened(self) -> None:
        self.world.check()
        states = {n: m.state for n, m in self._domain.roster.members.items()}
        awake = [n for n, state in states.items() if state is LifeState.READY]
        self.most_awake = max(self.most_awake, len(awake))
        self.slept |= {n for n, state in states.items() if state is LifeState.SLEEPING}
        self.stopped |= {n for n, state in states.items() if state is LifeState.STOPPED}
        for name in self.slept & states.keys():
            if states[name] is LifeState.SLEEPING:
                assert not self._domain.engines[name].queues.used_blocks

    @property
    def _domain(self) -> RosteredDomain:
        (domain,) = self.world.domains
        assert isinstance(domain, RosteredDomain)
        return domain


@cache
def watched(way: str, count: int = 9, rate: float = 3.0) -> RosterWatch:
    made = build.world(setup(zipf(count, rate), roster={}), WAYS[way], 1)
    watch = RosterWatch(made)
    made.observer = watch
    made.run()
    return watch


@pytest.mark.parametrize("way", ["static", "pooled", "mirage", "swap", "copies"])
def test_every_request_is_served_and_memory_is_kept(way: str) -> None:
    watch = watched(way)
    assert len(watch.done) == 60
    assert 1 < watch.most_awake < 9
    assert {name for name, _ in watch.done} == {f"m{place}" for place in range(9)}
    for engine in watch.world.engines:
        engine.queues.check_empty()


def test_who_sleeps_keeps_its_process_and_who_swaps_ends_it() -> None:
    assert watched("mirage").slept
    assert not watched("swap").slept and watched("swap").stopped


def test_many_that_start_find_the_bytes_that_they_hold_asleep() -> None:
    """More models start than may sleep at the same time (`asleep_part`), while the device's memory
    is lent. All 60 requests are served.
    """
    made = build.world(setup(zipf(24, 6.0), roster={"asleep_part": 0.2}), WAYS["mirage"], 1)
    watch = RosterWatch(made)
    made.observer = watch
    made.run()
    assert len(watch.done) == 60 and watch.stopped


def first_token_s(way: str) -> float:
    """Seconds to the first token of a request for a model that is not awake, on a device with room
    for one model, under the variant `way`.
    """
    tenants = [
        {"name": "a", "model": "llama-2-13b", "rate": 1.0},
        {"name": "b", "model": "llama-2-13b", "rate": 0.01},
    ]
    made = setup(tenants, roster={}, memory_gib=36)
    request = SimulatedRequest(0, 20 * PS, 16, 2)
    world = build.world(made, WAYS[way], 1, arrivals={"a": iter(()), "b": iter([request])})
    world.run()
    assert request.first > 0
    return (request.first - request.arrival) / PS


def test_a_wake_takes_its_bytes_over_the_link() -> None:
    shape = setup([{"name": "b", "model": "llama-2-13b", "rate": 1.0}], roster={})
    loaded = shape.shapes["b"].layers * shape.shapes["b"].layer_bytes
    least = 0.1 + loaded / 51e9
    assert least < first_token_s("mirage") < least + 0.05 + 0.1
    assert first_token_s("copies") > 2 * least - 0.1
    assert first_token_s("swap") > least + 5.0


def test_what_the_roster_is_not_simulated_with_is_refused() -> None:
    for more in ({"sharing": {"mode": "temporal"}}, {"prefix_cache": True}):
        with pytest.raises(ConfigError, match="roster is simulated for models that run at once"):
            setup(zipf(2, 1.0), roster={}, **more)


def test_without_a_roster_a_share_is_needed() -> None:
    with pytest.raises(ConfigError, match="tenant 'm0' has no share: write per cent"):
        setup(zipf(2, 1.0))
