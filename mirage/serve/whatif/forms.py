"""Forms of what a simulation needs to know of a server. Bytes of device memory, seconds."""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.protocol import ModelShape

StepBound = tuple[int, int, int, int, int]
"""Picoseconds as those of `mirage.simulate.roofline.CostBound`."""


class SceneSteps(msgspec.Struct, frozen=True):
    """Times of one engine's steps."""

    compute: tuple[StepBound, ...]
    overhead: StepBound
    source: str
    """Source of them, in words."""


class SceneTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a tenant beside what the configuration says of it."""

    shape: ModelShape
    steps: SceneSteps | None
    """Step times; None for an engine that has computed nothing yet and has no profile."""
    load_s: float
    """Seconds to load a layer."""
    own: StateBytes
    times: SwitchTimes


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration as it is served, and what is known of its engines."""

    config: dict[str, Any]
    """Sections and keys on which memory and steps depend; no share is ``auto``."""
    tenants: dict[str, SceneTenant]
    comes_and_goes: bool
    """True if tenants need not be awake."""
    shares_compute: bool
    """True if engines that step at the same time slow each other: those of a GPU. On a host steps
    are taken as they were measured, whoever computed beside."""
    apply_s: float
    message_s: float


class WhatIfFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts for a simulation of the configuration that holds, and of another one."""

    now: Scene
    after: Scene
    preempted: dict[str, int]
    """Requests of each tenant that were preempted since the first of `PastTold`."""
    notes: tuple[str, ...] = ()
    """Sentences about what is not known."""


class PastRow(msgspec.Struct, frozen=True):
    """A request that has ended, as the history keeps it."""

    tenant: str
    t: float
    """Time at which it came, in seconds since 1970."""
    prompt: int
    """Tokens."""
    output: int
    """Tokens."""
    first_s: float | None
    """Seconds until its first token; None if its answer was no stream."""
    whole_s: float
    counted: bool
    """True if its answer told its tokens; else they are guessed by bytes and events."""


class PastTold(msgspec.Struct, frozen=True):
    """Answer of ``GET /requests``."""

    requests: list[PastRow]
    next_since: int | None
    """Number after which the next page begins; None with the newest request."""
