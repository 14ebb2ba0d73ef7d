"""``result.json``: the figures of every policy for the same requests, over all seeds.

It has no time and no name of this machine: the same experiment and seeds give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import Any

import msgspec

from mirage.simulate.experiment import Setup
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.run import Metrics
from mirage.simulate.variants import Variant
from mirage.workload.lengths import lengths

SCHEMA_VERSION = 1
BASELINES = ("static", "pooled")
"""Policies with which each of the other policies is compared."""
NO_METRICS = frozenset({"policy", "seed", "tenants", "devices", "curves", "timelines"})
"""Keys of a run whose value is not a single number."""

Result = dict[str, Any]


def build(setup: Setup | FleetSetup, seeds: Sequence[int], runs: Sequence[Metrics]) -> Result:
    """The whole result, ready for JSON, from one run of each policy with each of `seeds`."""
    of = {(run["policy"], run["seed"]): run for run in runs}
    by_policy = {v.name: [of[v.name, seed] for seed in seeds] for v in setup.variants}
    fleet = {"devices": _devices(setup)} if isinstance(setup, FleetSetup) else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "experiment": _written(setup),
        "hardware": setup.hardware.model_dump(mode="json"),
        "models": {name: model.model_dump(mode="json") for name, model in setup.models.items()},
        "shapes": {name: msgspec.to_builtins(shape) for name, shape in setup.shapes.items()},
        "lengths": _lengths(setup),
        "seeds": list(seeds),
        "policies": list(by_policy),
        "variants": {variant.name: _variant(variant) for variant in setup.variants},
        "results": {name: _result(by_policy, name) for name in by_policy},
        **fleet,
    }


def as_json(result: Mapping[str, Any]) -> str:
    """The result as JSON text. Raises ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(result, indent=1, sort_keys=True, allow_nan=False) + "\n"


def summary(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Spread of each figure over the seeds; `parts` are the runs of one policy, or one tenant's
    parts of them.
    """
    keys = [key for key in parts[0] if key not in NO_METRICS]
    return {key: spread([part[key] for part in parts]) for key in keys}


def spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Mean, minimum and maximum of one figure over the seeds, and its value for each seed. None if
    no seed has a value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = fsum(known) / len(known)
    return {"mean": mean, "min": min(known), "max": max(known), "values": list(values)}


def ratios(
    parts: Sequence[Mapping[str, Any]], bases: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """Ratio of each figure to the baseline's: ratio of the means, and the range over the seeds.

    A metric is left out if with any seed it is 0 under the baseline, or unknown.
    """
    found = {}
    for key in [key for key in bases[0] if key not in NO_METRICS]:
        values, against = [part[key] for part in parts], [base[key] for base in bases]
        if all(against) and None not in values:
            pairs = [value / base for value, base in zip(values, against, strict=True)]
            of_means = fsum(values) / fsum(against)
            found[key] = {"of_means": of_means, "min": min(pairs), "max": max(pairs)}
    return found


def _result(by_policy: Mapping[str, Sequence[Metrics]], name: str) -> dict[str, Any]:
    """Figures of one policy. The timelines are those of the first seed."""
    runs = by_policy[name]
    bases = {base: by_policy[base] for base in BASELINES if base in by_policy}
    tenants = {
        tenant: _part(
            [run["tenants"][tenant] for run in runs],
            {base: [run["tenants"][tenant] for run in of] for base, of in bases.items()},
        )
        for tenant in runs[0]["tenants"]
    }
    devices = {
        device: summary([run["devices"][device] for run in runs])
        for device in runs[0].get("devices", {})
    }
    return {
        **_part(runs, bases),
        **({"devices": devices} if devices else {}),
        "tenants": tenants,
        "curves": {latency: _curve(runs, latency) for latency in runs[0]["curves"]},
        "timelines": runs[0]["timelines"],
    }


def _part(
    runs: Sequence[Mapping[str, Any]], bases: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    against = {base: ratios(runs, of) for base, of in bases.items()}
    return {"figures": summary(runs), "ratios": against}


def _curve(runs: Sequence[Metrics], latency: str) -> dict[str, list[float]]:
    """Mean and range of each percentile in milliseconds, over the seeds that have values."""
    curves = [run["curves"][latency] for run in runs if run["curves"][latency]]
    columns = list(zip(*curves, strict=True))
    return {
        "mean": [fsum(column) / len(column) for column in columns],
        "min": [min(column) for column in columns],
        "max": [max(column) for column in columns],
    }


def _devices(setup: FleetSetup) -> dict[str, dict[str, Any]]:
    """Hardware of each device, and the share in per cent of each of its tenants."""
    return {
        name: {
            "hardware": of.hardware.title,
            "shares": {tenant.name: tenant.share for tenant in of.experiment.tenants},
        }
        for name, of in setup.devices.items()
    }


def _written(setup: Setup | FleetSetup) -> dict[str, Any]:
    """The experiment with all defaults; the path of a trace in or below the folder of its file is
    relative to that folder.
    """
    written: dict[str, Any] = setup.experiment.model_dump(mode="json")
    workload = setup.experiment.workload
    if workload.file is not None:
        written["workload"]["file"] = _seen_from(workload.file, setup.near)
    for tenant, file in workload.files.items():
        written["workload"]["files"][tenant] = _seen_from(file, setup.near)
    return written


def _seen_from(file: Path, near: Path) -> str:
    return (file.relative_to(near) if file.is_relative_to(near) else file).as_posix()


def _lengths(setup: Setup | FleetSetup) -> dict[str, Any]:
    """Distribution of each tenant's lengths; empty if a whole trace has them."""
    asked = setup.experiment.workload
    if asked.arrivals == "trace":
        return {}
    names = {tenant.name: tenant.lengths or asked.lengths for tenant in setup.experiment.tenants}
    return {tenant: {"name": name, **lengths(name).model_dump()} for tenant, name in names.items()}


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "policy": str(variant.policy),
        "remap": dict(variant.changes),
        "tiers": variant.tiers,
        "meaning": variant.meaning,
    }
