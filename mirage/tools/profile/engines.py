"""Questions to the child processes of a profile, from a configuration and the sizes of its tenants
on the device (`Fit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mirage.config import Config, TenantSection
from mirage.serve.fit.fit import Fit
from mirage.serve.launch import launcher
from mirage.tools.profile.plan import (
    FEW,
    MANY,
    SHORT,
    Effort,
    MeasuringLimits,
    SteadyLoad,
    points,
    thinned,
    transfer_sizes,
)

CLOCKS = {"host": "cpu_s", "cuda": "wall_s"}
"""Clock for the time of a step, by `device.kind`. Other work lengthens processor time little, but a
GPU's steps do not run on the processor.
"""
MOST_TRANSFER = 256 << 20
BEYOND_CACHES = 64 << 20
"""Bytes over which copies are spread if the device is host memory, so that none finds its bytes in
a processor's cache.
"""
PAGES = (1, 4, 16, 64, 256)
ONE_STEP_AT_A_TIME = "--no-async-scheduling"
"""Option of vLLM without which the measured time of a step would include another step's."""


def limits(tenant: TenantSection, fit: Fit) -> MeasuringLimits:
    """Limits of the measured engine on sequences, tokens and KV blocks, by which the loads to
    measure are chosen."""
    return MeasuringLimits(
        sequences=tenant.max_num_seqs,
        length=tenant.max_model_len,
        budget=tenant.max_num_batched_tokens,
        block_tokens=max(1, min((g.block_tokens for g in fit.kv.groups), default=1)),
        blocks=fit.base_blocks - 1,  # one is vLLM's null block
    )


def loads(tenant: TenantSection) -> tuple[SteadyLoad, SteadyLoad]:
    """A load of few requests at a time, and one of many, cut to the limits of this tenant's
    engine.
    """
    alone = MeasuringLimits(
        tenant.max_num_seqs, tenant.max_model_len, tenant.max_num_batched_tokens, 1, 1
    )
    return FEW.limited(alone), MANY.limited(alone)


def roomy(config: Config, fit: Fit) -> Fit:
    """The fit with the largest possible number of KV blocks from the start.

    On a GPU it has no more blocks than fit into the device beside this model's parameters.
    """
    blocks = fit.max_blocks
    if config.device.kind == "cuda" and fit.extent_bytes:
        left = (config.device.memory - fit.parameter_bytes) // fit.extent_bytes
        blocks = min(blocks, left * fit.extent_blocks)
    grant = fit.parameter_bytes + blocks * fit.block_bytes
    return replace(fit, base_blocks=blocks, grant_bytes=grant)


def engine_question(
    config: Config, tenant: TenantSection, fit: Fit, effort: Effort
) -> dict[str, Any]:
    """Question for `mirage.engine.steptimes`."""
    wide = roomy(config, fit)
    words = launcher.command(config, tenant, wide, Path("unused"), None)
    argv = words[words.index(launcher.SERVER[-1]) + 1 :]
    kind = config.device.kind
    return {
        "tenant": tenant.name,
        "argv": [*argv, *([ONE_STEP_AT_A_TIME] if kind == "cuda" else [])],
        "clock": CLOCKS[kind],
        "loads": loads(tenant),
        **asdict(points(limits(tenant, wide), effort)),
        **{key: value for key, value in asdict(effort).items() if key not in ("name", "points")},
    }


def transfer_question(config: Config, fits: Mapping[str, Fit], effort: Effort) -> dict[str, Any]:
    """Question for `mirage.tools.profile.transfers`.

    The largest copy is an eighth of the device's memory in whole pages, but at most `MOST_TRANSFER`
    and at least a page.
    """
    device = config.device
    page = next(iter(fits.values())).page.bytes
    most = max(page, min(MOST_TRANSFER, device.memory // 8) // page * page)
    counts = [count for count in PAGES if count * page <= most]
    return {
        "kind": device.kind,
        "index": device.index,
        "page": page,
        "copy_bytes_per_s": device.link_bytes_per_s,
        "sizes": transfer_sizes(page, most, {f.layer_bytes for f in fits.values()}, effort),
        "span": BEYOND_CACHES if device.kind == "host" else 2 * most,
        "counts": thinned(counts, effort.points),
        "rounds": effort.transfers,
    }


def served_question(
    config: Config, file: Path, log: Path, vllm: Path, effort: Effort
) -> dict[str, Any]:
    """Question for `mirage.tools.profile.served`. `file` is served; the process at `vllm` is asked
    about its models.
    """
    both = {tenant.name: loads(tenant) for tenant in config.tenants}
    return {
        "config": str(file),
        "log": str(log),
        "vllm": str(vllm),
        "prompt": min(SHORT, *(t.max_model_len - 2 for t in config.tenants)),
        "alone": effort.alone,
        "burst": effort.burst,
        "bursts": effort.bursts,
        "load_s": effort.served_s,
        "repetitions": effort.served_repetitions,
        "groups": effort.groups,
        "few": {name: few for name, (few, _) in both.items()},
        "many": {name: many for name, (_, many) in both.items()},
    }
