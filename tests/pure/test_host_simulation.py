"""The simulator's half of the cross-check, in turns with memory below the device and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.host_simulation import Host, HostRoofline, sampled, setup, simulate
from mirage import config as configuration
from mirage import profiles
from mirage.config import Config
from mirage.simulate.roofline import PS, Work
from mirage.simulate.run import Metrics
from mirage.tools.profile.fitting import Fitted
from mirage.tools.profile.serving import Extra
from mirage.workload import dealing, trace
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
    load_s=0.0002,
)


def crossed(name: str) -> Config:
    return configuration.load(CONFIGS / name)


@pytest.fixture(scope="module")
def figures() -> dict[str, Metrics]:
    """Figures by the policy's name."""
    found = {}
    for file, policy in (("crosscheck.yaml", "pooled"), ("crosscheck-tiers.yaml", "pooled-tiers")):
        config = crossed(file)
        how = config.replay
        assert how.window is not None
        rows = trace.select(SAMPLE, how.window, None)
        calls = dealing.build(config, rows, how.time_scale, how.length_scale, how.seed)
        made = setup(config, CONFIGS / "hardware" / "host.yaml", {})
        found[policy] = simulate(config, made, policy, calls, HOST)
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
    """A deadline of the controller may come minutes after the last report."""
    reports = [(t / 10, "a", SimpleNamespace(alpha=t % 4, kv_blocks=7)) for t in range(40)]
    soon, late = (SimpleNamespace(said=reports, now=s * PS) for s in (4, 600))
    found = sampled(late)  # type: ignore[arg-type]
    assert found == sampled(soon)  # type: ignore[arg-type]
    assert found["layers_remapped_mean"] == pytest.approx(1.5, abs=0.1)


def test_each_model_has_the_steps_that_its_own_engine_was_measured_with() -> None:
    """One line for three models had the steps of llama, four at once, a quarter too short."""
    hardware, model = profiles.hardware("host"), profiles.model("demo-llama")
    quick, slow = Fitted(0.01, 1e-4, 1e20, 1e20, 0.0), Fitted(0.02, 3e-4, 1e20, 1e20, 0.0)
    host = replace(HOST, front=NONE, steps={model.title: slow, "another": quick})
    seconds = HostRoofline(model, hardware, host=host).compute_ps(Work(4, 100)) / PS
    assert seconds == pytest.approx(0.02 + 4 * 3e-4, rel=1e-3)
    common = HostRoofline(model, hardware, host=replace(host, steps={})).compute_ps(Work(4, 100))
    assert common == HostRoofline(model, hardware, host=replace(HOST, front=NONE)).compute_ps(
        Work(4, 100)
    )
    assert common / PS != pytest.approx(seconds, rel=1e-3)
