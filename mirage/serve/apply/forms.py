"""Forms of what an apply says. Bytes of device memory."""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.serve.whatif.forms import WhatIfFacts

ABSENT = "absent"
"""State of a tenant that is not there yet, or no more."""


class ChangeTold(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant whose keys are not as they were."""

    name: str
    at_once: tuple[str, ...]
    restart: tuple[str, ...]
    """Keys for which its engine, if there is one, starts anew."""


class FittingTold(msgspec.Struct, frozen=True, kw_only=True):
    """Outlook of a tenant that is new, or starts anew."""

    name: str
    bytes: int
    """Bytes of the device that its start takes."""
    spare_bytes: int
    """Bytes that are free when it has started; negative: those that are missing."""
    yields: tuple[str, ...]
    """Tenants that would yield for it now."""
    comes: bool
    """False if it has to wait until others may yield."""


class DeviceAwaits(msgspec.Struct, frozen=True, kw_only=True):
    """Part of one of several devices in an apply."""

    revision: int
    """Revision of its own server, which lines of its tenants have then."""
    awaited: dict[str, str]
    """As `ApplyTold` has it."""


class ApplyTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a configuration: what differs from the one that holds, and what follows."""

    applied: bool
    """False of a dry run, and where nothing differs."""
    revision: int
    added: tuple[str, ...]
    changed: tuple[ChangeTold, ...]
    removed: tuple[str, ...]
    roster: tuple[str, ...]
    fitting: tuple[FittingTold, ...]
    awaited: dict[str, str]
    """State in which each tenant has settled; ``absent`` of one that is removed."""
    lines: tuple[str, ...]
    """The same as sentences."""
    what_if: WhatIfFacts | None = None
    """Facts for a simulation, if a dry run asked for them and something differs."""
    devices: dict[str, DeviceAwaits] = {}
    """The devices that it concerns, where several are served."""


class ConfigTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /config``."""

    revision: int
    folder: str
    """Folder that paths are relative to."""
    configuration: dict[str, Any]
    """Configuration that is wanted, as it was written, secrets included."""
