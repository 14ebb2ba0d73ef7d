"""Simulations that the cross-check compares with this host, in turns, with tiers and without."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from benchmarks.host_simulation import (
    Host,
    HostRoofline,
    coming,
    host_world,
    sampled,
    setup,
    simulate,
)
from mirage import config as configuration
from mirage import profiles
from mirage.config import Config
from mirage.simulate import build
from mirage.simulate.roofline import PS, CostBound, Work
from mirage.simulate.run import Metrics
from mirage.simulate.variants import variant
from mirage.tools.profile.serving import Extra, ReadingCost
from mirage.workload import dealing, trace
from mirage.workload.dealing import TenantRequest
from traces import SAMPLE

pytestmark = pytest.mark.pure

NONE = Extra(0.0, 0.0)
CONFIGS = Path(__file__).parents[2] / "configs"
HOST = Host(
    cores=2,
    inflation=(1.0, 1.1, 1.2),
    engine=NONE,
    front=Extra(0.001, 0.0),
    latency_s=0.03,
    request_s=0.01,
    reading=ReadingCost(0.001, 0.002, 0.003, 0.002),
    load_s=0.0002,
)


def crossed(name: str) -> Config:
    return configuration.load(CONFIGS / name)


def loaded(config: Config) -> list[TenantRequest]:
    """Requests of the replay that a configuration describes, dealt to its tenants."""
    how = config.replay
    assert how.window is not None
    rows = trace.select(SAMPLE, how.window, None)
    return dealing.build(config, rows, how.time_scale, how.length_scale, how.seed)


@pytest.fixture(scope="module")
def figures() -> dict[str, Metrics]:
    """Figures of the simulated runs of both cross-check configurations, by the policy's name."""
    found = {}
    for file, policy in (("crosscheck.yaml", "pooled"), ("crosscheck-tiers.yaml", "pooled-tiers")):
        config = crossed(file)
        made = setup(config, CONFIGS / "hardware" / "host.yaml", {})
        found[policy] = simulate(config, made, policy, loaded(config), HOST)
    return found


def test_both_are_the_same_load(figures: dict[str, Metrics]) -> None:
    plain, tiered = crossed("crosscheck.yaml"), crossed("crosscheck-tiers.yaml")
    assert plain == tiered.model_copy(update={"tiers": plain.tiers})
    for key in ("completed", "total_input_tokens", "total_output_tokens"):
        assert figures["pooled"][key] == figures["pooled-tiers"][key] > 0


def test_memory_is_short_and_turns_end_with_spilling(figures: dict[str, Metrics]) -> None:
    plain, tiered = figures["pooled"], figures["pooled-tiers"]
    assert plain["preemptions"] > 0 == plain["spills"] == plain["kv_bytes_down"]
    assert tiered["spills"] > 0 and tiered["kv_bytes_down"] > 0 and tiered["tokens_from_host"] > 0
    assert tiered["preemptions"] >= tiered["spills"], "an engine counts both alike"


def test_layers_are_averaged_while_there_are_requests() -> None:
    """Reports of four seconds have a mean of 1.5 layers remapped. It is the same when the simulated
    world ends minutes later, at a deadline of the controller.
    """
    reports = [
        (t / 10, "a", SimpleNamespace(layers_remapped=t % 4, kv_blocks=7)) for t in range(40)
    ]
    soon, late = (SimpleNamespace(said=reports, now=s * PS) for s in (4, 600))
    found = sampled(late)  # type: ignore[arg-type]
    assert found == sampled(soon)  # type: ignore[arg-type]
    assert found["layers_remapped_mean"] == pytest.approx(1.5, abs=0.1)


def test_each_model_has_the_steps_that_its_own_engine_was_measured_with() -> None:
    """A model with measured step times of its own takes those. Other models take the times of the
    machine's profile.
    """
    hardware, model = profiles.hardware("host"), profiles.model("demo-llama")
    quick, slow = (
        CostBound(PS // 100, 0, 0, 0, 0),
        CostBound(PS // 50, PS // 2000, PS // 10**6, 0, 0),
    )
    host = replace(HOST, front=NONE, steps={model.title: slow, "another": quick})
    seconds = HostRoofline(model, hardware, host=host).compute_ps(Work(4, 100)) / PS
    assert seconds == pytest.approx(0.02 + 4 * 5e-4 + 100 * 1e-6, rel=1e-9)
    common = HostRoofline(model, hardware, host=replace(host, steps={})).compute_ps(Work(4, 100))
    assert common == HostRoofline(model, hardware, host=replace(HOST, front=NONE)).compute_ps(
        Work(4, 100)
    )
    assert common / PS != pytest.approx(seconds, rel=1e-3)


NO_READING = ReadingCost(0.0, 0.0, 0.0, 0.0)


def first_token_s(host: Host, calls: list[TenantRequest]) -> list[float]:
    """Seconds from the start to the first token of each call, under policy `pooled` in turns."""
    config, sent = crossed("crosscheck.yaml"), coming(calls, host)
    made = setup(config, CONFIGS / "hardware" / "host.yaml", {})
    world = host_world(config, made, "pooled", host)
    world.send(sent)
    world.run()
    world.check()
    return [each.request.first / PS for each in sent]


def call(number: int, tenant: str, at_s: float = 0.0, tokens: int = 200) -> TenantRequest:
    return TenantRequest(number, at_s, tenant, tokens, 1, clipped=False)


@pytest.mark.parametrize(("cores", "longer"), [(1, 0.25), (2, 0.0)])
def test_a_step_goes_on_more_slowly_while_requests_are_read(cores: int, longer: float) -> None:
    """Four requests come when a quarter of a step is done; to read each takes a sixteenth of the
    step.

    On one core, reading and the step have half of it each, for half a step. So the step ends a
    quarter of its length later.
    """
    idle = replace(HOST, cores=cores, inflation=(1.0,), front=NONE, reading=NO_READING)
    (alone_s,) = first_token_s(idle, [call(0, "llama")])
    hardware, model = profiles.hardware("host"), profiles.model("demo-llama")
    step_s = HostRoofline(model, hardware, host=idle).compute_ps(Work(0, 0, 200, 200 * 201)) / PS
    busy = replace(idle, reading=ReadingCost(0.0, 0.0, step_s / 16, 0.0))
    read_from_s = alone_s - 0.75 * step_s
    sent_s = read_from_s - (busy.latency_s - step_s / 16)
    calls = [call(0, "llama"), *(call(n, "opt", sent_s) for n in range(1, 5))]
    assert first_token_s(busy, calls)[0] == pytest.approx(alone_s + longer * step_s, abs=1e-5)


@pytest.mark.parametrize("policy", ["pooled-tiers", "mirage-tiers"])
def test_without_work_in_front_all_is_as_if_arrivals_had_been_known(policy: str) -> None:
    """If reading takes no time, requests sent through the front end get their first tokens in the
    same picosecond as requests that the engine knew from the start.
    """
    config, host = crossed("crosscheck-tiers.yaml"), replace(HOST, reading=NO_READING)
    made = setup(config, CONFIGS / "hardware" / "host.yaml", {})
    told = host_world(config, made, policy, host)
    sent = coming(loaded(config), host)
    told.send(sent)
    told.run()
    known = coming(loaded(config), host)
    arrivals = {
        t.name: iter([k.request for k in known if k.tenant == t.name]) for t in config.tenants
    }
    most = {t.name: t.max_num_seqs for t in config.tenants}
    with mock.patch.object(build, "Roofline", partial(HostRoofline, host=host)):
        build.world(made, variant(policy), 0, arrivals=arrivals, max_num_seqs=most).run()
    assert [s.request.first for s in sent] == [k.request.first for k in known]


def test_a_burst_waits_for_its_front_end_and_not_for_those_of_others() -> None:
    """Ten requests, each of which takes 20 ms to read, come to one server at once: the last one
    waits 200 ms. A request to another server does not wait for them.
    """
    host = replace(HOST, latency_s=0.0, reading=ReadingCost(0.0, 0.0, 0.02, 0.0))
    burst = [call(n, "llama", tokens=16) for n in range(10)]
    llama, opt = first_token_s(host, [*burst, call(10, "opt", 1.0, tokens=16)])[-2:]
    assert llama > 0.2 and opt - 1.0 < 0.2


def test_an_engine_reads_its_requests_itself_beside_the_steps_of_others() -> None:
    """On one core, the engine of llama reads ten requests of 20 ms each. A step of opt beside it
    ends later by at most these 200 ms.
    """
    host = replace(HOST, cores=1, inflation=(1.0,), latency_s=0.0, front=NONE, reading=NO_READING)
    alone_s = first_token_s(host, [call(0, "opt")])[0]
    busy = replace(host, reading=ReadingCost(0.0, 0.0, 0.0, 0.02))
    burst = [call(n, "llama", 0.021, tokens=16) for n in range(1, 11)]
    opt, *llama = first_token_s(busy, [call(0, "opt"), *burst])
    assert alone_s + 0.02 < opt < alone_s + 0.02 + 0.2 + 1e-6
    assert min(llama) > 0.2
