"""Inputs of simulations, the scenes, made from a configuration and the facts known about its
engines.

Step times are those of `device.profile`; if it does not cover a model, those that the tenant's
engine has measured.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from mirage import profiles
from mirage.config import Config, ConfigError, TenantSection
from mirage.control.roster.needs import SwitchTimes
from mirage.profiles import Hardware
from mirage.protocol import ModelShape, Report
from mirage.serve.fit.fit import Fit
from mirage.serve.models.served_shape import served_shape
from mirage.serve.models.shapes import UnknownShape
from mirage.serve.roster.declared import LINK_BYTES_S, bytes_of, shape_of, switch_times
from mirage.serve.whatif.forms import Scene, SceneSteps, SceneTenant, StepBound
from mirage.simulate.roofline import PS, Roofline

logger = logging.getLogger("mirage.serve.whatif.scenes")
SECTIONS = {"sharing", "policy", "remap", "block_tokens", "roster"}
KEYS = {
    *("name", "model", "share", "priority", "floor_layers", "max_percent"),
    *("start", "keep_alive", "stop_after", "pinned"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens"),
}
"""Keys of a tenant that affect memory and steps."""
USUAL = {"host": "host", "cuda": "h100"}
"""Profile for each kind of device, for figures that engines do not measure."""
NOTHING: StepBound = (0, 0, 0, 0, 0)


class KnownEngine(NamedTuple):
    """Facts about a tenant's engine; each is None if it is not known."""

    shape: ModelShape | None = None
    """Shape of an engine that goes on unchanged."""
    report: Report | None = None
    times: SwitchTimes | None = None
    """Seconds of its starts, wakes and sleeps, as far as they were measured."""


UNKNOWN = KnownEngine()


def scene(
    config: Config, fits: Mapping[str, Fit], known: Mapping[str, KnownEngine], link: float | None
) -> Scene:
    """Facts that a simulation of `config` needs, a configuration that is served now or may be.

    Tenants without a `Fit` are left out. `link` is in bytes a second, None if unknown. Raises
    `ConfigError` if the profile cannot be read.
    """
    device, profile = config.device, config.device.profile
    hardware = None if profile is None else profiles.hardware(profile)
    usual = hardware or profiles.hardware(USUAL[device.kind])
    tenants = {
        tenant.name: _tenant(
            config, tenant, fits[tenant.name], known.get(tenant.name, UNKNOWN), hardware, link
        )
        for tenant in config.tenants
        if tenant.name in fits
    }
    return Scene(
        config=_sections(config, fits),
        tenants=tenants,
        comes_and_goes=comes_and_goes(config),
        shares_compute=device.kind == "cuda",
        apply_s=usual.apply_ms.value / 1e3,
        message_s=usual.message_ms.value / 1e3,
    )


def comes_and_goes(config: Config) -> bool:
    """True if a tenant may be asleep or stopped, by its own keys or because not all fit."""
    if sum(tenant.percent for tenant in config.tenants) > 100 + 1e-9:
        return True
    return any(t.keep_alive is not None or t.start == "on_request" for t in config.tenants)


def _sections(config: Config, fits: Mapping[str, Fit]) -> dict[str, object]:
    told = config.model_dump(mode="json", include=SECTIONS, exclude_none=True)
    told["device"] = {"memory": config.device.memory}
    for fit in fits.values():  # they have the page in common
        told["device"]["page"] = fit.page.bytes
    told["tenants"] = [
        tenant.model_dump(mode="json", include=KEYS, exclude_none=True)
        for tenant in config.tenants
        if tenant.name in fits
    ]
    return told


def _tenant(
    config: Config,
    tenant: TenantSection,
    fit: Fit,
    known: KnownEngine,
    hardware: Hardware | None,
    link: float | None,
) -> SceneTenant:
    shape, report = known.shape or shape_of(config, fit), known.report
    own = bytes_of(config, tenant, fit)
    measured_s = report.layer_load_s if report is not None else 0.0
    alone = config.device.kind == "cuda"
    return SceneTenant(
        shape=shape,
        steps=_by_profile(config, tenant, hardware) or _by_engine(report, shape.layers, alone),
        load_s=measured_s or shape.layer_bytes / (link or LINK_BYTES_S),
        own=own,
        times=known.times or switch_times(own, link),
    )


def _by_profile(
    config: Config, tenant: TenantSection, hardware: Hardware | None
) -> SceneSteps | None:
    if hardware is None:
        return None
    try:
        roofline = Roofline(served_shape(config, tenant), hardware)
    except (ConfigError, UnknownShape) as error:
        logger.info("device.profile tells nothing of tenant %r: %s", tenant.name, error)
        return None
    return SceneSteps(roofline.compute, roofline.overhead, "device.profile")


def _by_engine(report: Report | None, layers: int, alone: bool) -> SceneSteps | None:
    """Step times as the engine measured them; None if it has measured none.

    With `alone` (on a GPU) a step takes at most T_c for each layer, because T_c leaves out the
    compute of other engines.
    """
    if report is None or not report.step_s:
        return None
    step_s, alone_s = report.step_s, report.layer_compute_s * layers
    if alone and alone_s:
        step_s = min(step_s, alone_s)
    token_ps = round(report.token_s * PS)
    bound: StepBound = (round(step_s * PS), token_ps, 0, token_ps, 0)
    return SceneSteps((bound,), NOTHING, "its engine's own steps")
