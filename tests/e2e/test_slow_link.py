"""Turns that do not drain, over a link as slow as PCIe is for a 13B model: real engines, no harm.

Counts, not times: what crosses the link is what made requests three times slower.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirage.demo.models import make_models

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
LINK_GB_S = 0.06
REQUESTS = 60
UNCAPPED = {"decode_cap": False}
"""Algorithm 1 as published: layers go for whoever waits, whatever their way back costs."""


def replayed(
    folder: Path, name: str, policies: str, remap: dict[str, Any], link: float = LINK_GB_S
) -> dict[str, dict[str, Any]]:
    """The runs of one burst by policy."""
    paths = make_models(folder / "models", which=["llama", "qwen3"], layers=6)
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": 200, "max_num_seqs": 16}
        for name, path in paths.items()
    ]
    content = {
        "device": {"memory": "41MiB", "link_gb_s": link},
        "dtype": "float32",
        "tenants": tenants,
        "sharing": {"mode": "temporal", "turn_s": 0.5, "drain": False},
        "remap": remap,
        "replay": {"traffic": {"phase_s": 1000, "hot_share": 0.5}},
    }
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(content))
    out = folder / name
    words = ["replay", str(config), "--policy", policies, "--output", str(out)]
    burst = ["--limit", str(REQUESTS), "--time-scale", "0.001", "--length-scale", "0.3"]
    subprocess.run(
        [sys.executable, "-m", "mirage", *words, *burst],
        check=True,
        timeout=500,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    report = json.loads((out / "report.json").read_text())
    assert not report["outputs_different"]
    return {run["policy"]: run for run in report["runs"]}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("before")
    return replayed(folder, "uncapped", "mirage", UNCAPPED)["mirage"]


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return replayed(tmp_path_factory.mktemp("now"), "priced", "pooled,mirage", {})


def test_without_a_price_layers_cross_the_link_again_and_again(before: dict[str, Any]) -> None:
    """Or this load would prove nothing."""
    assert before["completed"] == REQUESTS
    assert before["layers_remapped_max"] > 2
    assert before["bytes_streamed"] > 100 << 20


def test_what_does_not_pay_is_not_lent(
    before: dict[str, Any], now: dict[str, dict[str, Any]]
) -> None:
    assert [run["completed"] for run in now.values()] == [REQUESTS, REQUESTS]
    assert now["mirage"]["bytes_streamed"] < before["bytes_streamed"] / 20


def test_over_a_fast_link_layers_are_lent(tmp_path: Path) -> None:
    """And come back: what is streamed is no more than a step's at each change."""
    fast = replayed(tmp_path, "fast", "mirage", {}, link=5.0)["mirage"]
    assert fast["completed"] == REQUESTS
    assert fast["layers_remapped_max"] > 2
