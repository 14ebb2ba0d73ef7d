"""Roster of a configuration: each tenant's memory in each state, and the times between states.

Times are guessed from the machine's link until engines have been seen to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from mirage.config import Config, Policy, TenantSection
from mirage.control.roster.needs import (
    AtOnce,
    StateBytes,
    SwitchSpeeds,
    SwitchTimes,
    at_once,
    state_bytes,
)
from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.rules import Rules
from mirage.protocol import ModelShape
from mirage.serve.fit.fit import Fit
from mirage.units import ceil_div

LINK_BYTES_S = 5e9
"""Bytes a second from host to device, where the link was not measured."""
DISK_BYTES_S = 1e9


def roster_of(config: Config, fits: Mapping[str, Fit], link: float | None, now: float) -> Roster:
    """Roster with all tenants that fit, none of which has an engine yet.

    `link` is in bytes a second, None if unknown. Raises `NeverServedError` for a tenant that can
    never start.
    """
    roster = Roster(config.device.memory, rules_of(config), apart=True)
    for tenant in config.tenants:
        if tenant.name in fits:
            own = bytes_of(config, tenant, fits[tenant.name])
            roster.applied(spec_of(tenant), own, switch_times(own, link), now)
    return roster


def switch_times(own: StateBytes, link: float | None) -> SwitchTimes:
    """Guessed seconds of starts, wakes and sleeps; `link` in bytes a second, None if unknown."""
    return SwitchSpeeds(link or LINK_BYTES_S, DISK_BYTES_S).times(own)


def rules_of(config: Config) -> RosterRules:
    """Rules of the roster. Models sleep only under policy mirage, by giving layers; else engines
    end.
    """
    sleeps = config.policy is Policy.MIRAGE
    return RosterRules(**config.roster.model_dump(), sleeps=sleeps)


def spec_of(tenant: TenantSection) -> TenantSpec:
    """A tenant's section of the configuration in the form that the roster takes."""
    return TenantSpec(
        tenant.name,
        tenant.percent,
        tenant.priority,
        tenant.floor_layers,
        tenant.max_percent,
        start=tenant.start,
        keep_alive_s=inf if tenant.keep_alive is None else tenant.keep_alive,
        stop_after_s=inf if tenant.stop_after is None else tenant.stop_after,
        keep_weights="none",  # the keeper of weights tells whose it has
        pinned=tenant.pinned,
        queued=tenant.max_waiting,
        wait_s=tenant.max_wait_s,
    )


def bytes_of(config: Config, tenant: TenantSection, fit: Fit) -> StateBytes:
    """Bytes of device memory that the tenant takes in each state.

    The share of a tenant that fits holds all its layers.
    """
    shape = shape_of(config, fit)
    return state_bytes(spec_of(tenant), shape, config.device.memory, Rules.served(config))


def shape_of(config: Config, fit: Fit) -> ModelShape:
    """Shape that the tenant's engine will report, computed before there is one."""
    return ModelShape(
        layers=fit.layers,
        layer_bytes=fit.layer_bytes,
        fixed_bytes=fit.fixed_bytes,
        extent_bytes=fit.extent_bytes,
        extent_blocks=fit.extent_blocks,
        block_tokens=config.block_tokens,
        max_extents=fit.max_blocks // fit.extent_blocks,
        min_extents=ceil_div(fit.min_blocks, fit.extent_blocks),
        movable_layers=fit.layers if fit.movable_layers else 0,
    )


def together_awake(config: Config, fits: Mapping[str, Fit]) -> AtOnce:
    """Number of tenants that can be awake at the same time, as bounds."""
    every = [bytes_of(config, config.tenant(name), fit) for name, fit in fits.items()]
    return at_once(every, config.device.memory)
