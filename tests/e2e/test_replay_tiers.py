"""Conversations through `mirage replay`, on real engines with tiers and without."""

from __future__ import annotations

import json
from typing import Any

import pytest
import warm
import yaml

from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

BLOCK = 32
POLICIES = ["mirage", "mirage-tiers"]
TURNS = {
    "kind": "synthetic",
    "rate": 10,
    "requests": 60,
    "shape": {"prompt_mean": 30, "prompt_sigma": 0.5, "output_mean": 6, "output_sigma": 0.3},
    "bounds": {"prompt": [8, 60], "output": [2, 12]},
    "sessions": {"turns": 5, "think_s": 2},
    "prefixes": {"count": 100_000, "tokens": 100},
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Report of a replay of two models, one request at a time, on a device that holds few
    conversations.
    """
    folder = tmp_path_factory.mktemp("tiers")
    paths = make_models(folder, which=["llama", "qwen3"], layers=6)
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": 400, "max_num_seqs": 2}
        for name, path in paths.items()
    ]
    content = {
        "device": {"memory": "46MiB"},
        "dtype": "float32",
        "block_tokens": BLOCK,
        "tenants": tenants,
        "tiers": {"host": {"bytes": "256MiB"}},
        "replay": {"trace": "turns.yaml", "traffic": {"hot_share": 0.5}},
    }
    config, trace = folder / "config.yaml", folder / "turns.yaml"
    config.write_text(yaml.safe_dump(content))
    trace.write_text(yaml.safe_dump(TURNS, sort_keys=False))
    words = ["replay", str(config), "--policy", ",".join(POLICIES), "--concurrency", "1"]
    warm.mirage(*words, "--output", str(folder / "out"), folder=folder, timeout_s=900)
    loaded: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())
    return loaded


def found(run: dict[str, Any]) -> int:
    return sum(run[f"tokens_from_{place}"] for place in ("device", "peer", "host", "ssd"))


def test_every_text_is_the_same(report: dict[str, Any]) -> None:
    assert [run["policy"] for run in report["runs"]] == POLICIES
    assert [run["completed"] for run in report["runs"]] == [60, 60]
    assert report["outputs_identical"] is True


def test_every_token_of_a_prompt_is_computed_or_found(report: dict[str, Any]) -> None:
    for run in report["runs"]:
        assert run["preemptions"] == 0
        # Of a prompt that is found whole vLLM computes the last token again.
        twice = run["prefill_tokens"] + found(run) - run["total_input_tokens"]
        assert 0 <= twice <= run["completed"]


def test_no_more_is_found_than_the_trace_repeats(report: dict[str, Any]) -> None:
    repeated = report["repeated_tokens"]
    assert repeated > 0
    for run in report["runs"]:
        # A token before the first of a prompt moves what is a whole block.
        assert found(run) <= repeated + BLOCK * run["completed"]


def test_with_tiers_histories_come_back(report: dict[str, Any]) -> None:
    without, tiered = report["runs"]
    assert without["tokens_from_host"] == without["kv_bytes_up"] == without["kv_bytes_down"] == 0
    assert tiered["tokens_from_host"] > 0
    assert tiered["tokens_from_peer"] == tiered["tokens_from_ssd"] == 0
    assert tiered["kv_bytes_up"] > 0 and tiered["kv_bytes_down"] > 0
    assert tiered["prefill_tokens"] < without["prefill_tokens"]
    assert (
        sum(tenant["tokens_from_host"] for tenant in tiered["tenants"].values())
        == (tiered["tokens_from_host"])
    )
    kept = tiered["timeline"]["tenants"]["llama"]
    assert (
        kept["tokens_from_host"][-1] - kept["tokens_from_host"][0]
        == (tiered["tenants"]["llama"]["tokens_from_host"])
    )


def test_first_and_later_turns_are_told_apart(report: dict[str, Any]) -> None:
    for run in report["runs"]:
        assert run["p50_ttft_first_ms"] > 0 and run["p99_ttft_later_ms"] > 0
