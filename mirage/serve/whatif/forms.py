"""Facts about a server that a simulation needs. Bytes are of device memory, times in seconds."""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.protocol import ModelShape

StepBound = tuple[int, int, int, int, int]
"""Numbers of a `mirage.simulate.roofline.CostBound`, in picoseconds."""


class SceneSteps(msgspec.Struct, frozen=True):
    """Step times of one engine, as the simulation of a scene needs them."""

    compute: tuple[StepBound, ...]
    overhead: StepBound
    source: str
    """Origin of these times, in words."""


class SceneTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a tenant beyond its keys in the configuration."""

    shape: ModelShape
    steps: SceneSteps | None
    """Step times; None for an engine that has computed nothing yet and has no profile."""
    load_s: float
    """Seconds to load one layer."""
    own: StateBytes
    times: SwitchTimes


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a simulation, without requests: a configuration that is served or may be, and the
    facts known about its engines.
    """

    config: dict[str, Any]
    """Sections and keys on which memory and steps depend; no share is ``auto``."""
    tenants: dict[str, SceneTenant]
    comes_and_goes: bool
    """True if tenants may be asleep or stopped."""
    shares_compute: bool
    """True if engines that step at the same time slow each other down, as on a GPU. On a host step
    times are used as measured, whatever else was running.
    """
    apply_s: float
    message_s: float


class WhatIfFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts for a simulation of the present configuration, and of another one."""

    now: Scene
    after: Scene
    preempted: dict[str, int]
    """Number of preemptions of each tenant's requests since its first kept rows were added."""
    notes: tuple[str, ...] = ()
    """Sentences about effects that are not known."""


class PastRow(msgspec.Struct, frozen=True):
    """A request that has ended, as the history keeps it."""

    tenant: str
    t: float
    """Time of arrival, in seconds since 1970."""
    prompt: int
    """Number of prompt tokens."""
    output: int
    """Number of output tokens."""
    first_s: float | None
    """Seconds until the first token; None if the answer was no stream."""
    whole_s: float
    counted: bool
    """True if the answer told its tokens; false if they are estimated from bytes and events."""


class PastTold(msgspec.Struct, frozen=True):
    """Answer of ``GET /requests``: a page of ended requests."""

    requests: list[PastRow]
    next_since: int | None
    """Value of `since` for the next page; None if this page has the newest request."""
    last: int
    """Value of `since` for the requests that end after those of this page. Numbers may have gaps,
    since requests of more than an hour ago and of removed tenants are dropped."""
