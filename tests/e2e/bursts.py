"""One burst through `mirage replay`, on real engines of two small models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import warm
import yaml

from mirage.tools.demo.models import make_models


def replayed(
    folder: Path,
    policies: str,
    *,
    hot_share: float,
    device: dict[str, Any] | None = None,
    ablations: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """Report of a replay of 60 requests that come at the same time, the part `hot_share` of them
    for one model. `more` are further keys of the configuration, `ablations` rules of the server
    that `benchmarks.ablated` replaces.
    """
    paths = make_models(folder, which=["llama", "qwen3"], layers=6)
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": 200, "max_num_seqs": 16}
        for name, path in paths.items()
    ]
    content = {
        "device": {"memory": "41MiB"} | (device or {}),
        "dtype": "float32",
        "tenants": tenants,
        "replay": {"traffic": {"phase_s": 1000, "hot_share": hot_share}},
        **more,
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    rules = [*ablations, "--"] if ablations else []
    words = [*rules, "replay", str(config), "--policy", policies, "--output", str(folder / "out")]
    burst = ["--limit", "60", "--time-scale", "0.001", "--length-scale", "0.3"]
    warm.mirage(*words, *burst, folder=folder, timeout_s=500)
    loaded: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())
    return loaded
