"""The settings that claims are measured in: `benchmarks/experiments/claims.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat

import configs
from benchmarks.variants import KNOWN
from mirage.config import Count, Strict, read_yaml, validated
from mirage.simulate.experiment import Experiment, Peak, Rate, Setup, SimulatedSharing
from mirage.simulate.routing import RouterModel
from mirage.simulate.tier_settings import SimulatedTiers

FOLDERS = (Path(__file__).parents[1] / "experiments", configs.HERE / "experiments")
"""Experiments that only claims are measured in, and those that come with the product."""

COPIED = (
    "sharing",
    "step_overhead_ms",
    "link_mixed_gb_s",
    "hardware",
    "memory_gib",
    "tiers",
    "routing",
)
"""Keys of a scene that replace the experiment's key of the same name."""


class Scene(Strict):
    """One experiment and the keys in which a scene differs from it. None leaves a key as it is,
    except `peak`: a scene without it has no peak.
    """

    experiment: str
    rate: Rate | None = None
    rates: dict[str, Rate] = Field(default_factory=dict)
    share: PositiveFloat | None = None
    length: str | None = None
    lengths: dict[str, str] = Field(default_factory=dict)
    sharing: SimulatedSharing | None = None
    step_overhead_ms: float | None = None
    link_mixed_gb_s: PositiveFloat | None = None
    hardware: str | None = None
    memory_gib: PositiveFloat | None = None
    tiers: SimulatedTiers | None = None
    routing: RouterModel | None = None
    requests: Count | None = None
    peak: Peak | None = None


class Scenes(Strict):
    scenes: dict[str, Scene]


def setups(trace: Path | None = None) -> dict[str, Setup]:
    """Every scene by name. With `trace`, arrivals are windows of that file instead of drawn.

    Raises `ConfigError` with one line for a scene that cannot be simulated.
    """
    path = FOLDERS[0] / "claims.yaml"
    scenes = validated(Scenes, read_yaml(path), path).scenes
    return {name: _setup(scene, trace) for name, scene in scenes.items()}


def _setup(scene: Scene, trace: Path | None) -> Setup:
    path = _experiment(scene.experiment)
    written = validated(Experiment, read_yaml(path), path)
    tenants = [_tenant(tenant, scene) for tenant in written.tenants]
    update: dict[str, Any] = {"tenants": tenants, "workload": _workload(written, scene, trace)}
    for key in COPIED:
        if (value := getattr(scene, key)) is not None:
            update[key] = value
    return Setup(written.model_copy(update=update), path.parent, known=KNOWN)


def _experiment(name: str) -> Path:
    return next(path for folder in FOLDERS if (path := folder / f"{name}.yaml").exists())


def _tenant(tenant: Any, scene: Scene) -> Any:
    rate = scene.rates.get(tenant.name, scene.rate or tenant.rate)
    lengths = scene.lengths.get(tenant.name, tenant.lengths)
    share = scene.share or tenant.share
    return tenant.model_copy(update={"rate": rate, "lengths": lengths, "share": share})


def _workload(written: Experiment, scene: Scene, trace: Path | None) -> Any:
    update: dict[str, Any] = {"peak": scene.peak}
    if scene.length is not None:
        update["lengths"] = scene.length
    if scene.requests is not None:
        update["requests"] = scene.requests
    if trace is not None:
        update |= {"arrivals": "windows", "file": trace}
    return written.workload.model_copy(update=update)
