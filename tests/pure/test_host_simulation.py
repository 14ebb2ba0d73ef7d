"""The simulator's half of the cross-check, in turns with memory below the device and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.host_simulation import Host, setup, simulate
from mirage import config as configuration
from mirage.config import Config
from mirage.simulate.run import Metrics
from mirage.tools.profile.serving import Extra
from mirage.workload import dealing, trace
from traces import SAMPLE

pytestmark = pytest.mark.pure

CONFIGS = Path(__file__).parents[2] / "configs"
HOST = Host(
    cores=2,
    inflation=(1.0, 1.1, 1.2),
    engine=Extra(0.0, 0.0),
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
