"""Forms of the answers to an apply. Bytes are of device memory."""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.serve.whatif.forms import WhatIfFacts

ABSENT = "absent"
"""State of a tenant that has not been added yet, or was removed."""


class ChangeTold(msgspec.Struct, frozen=True, kw_only=True):
    """Tenant whose keys have changed."""

    name: str
    at_once: tuple[str, ...]
    restart: tuple[str, ...]
    """Changed keys that need a new start of its engine, if it has one."""


class FittingTold(msgspec.Struct, frozen=True, kw_only=True):
    """Outlook of a tenant that is new, or whose engine starts anew."""

    name: str
    bytes: int
    """Bytes of device memory that its start needs."""
    spare_bytes: int
    """Bytes that stay free after its start if no other tenant yields; negative if bytes are
    missing.
    """
    yields: tuple[str, ...]
    """Tenants that would yield their memory for it now."""
    comes: bool
    """True if it can start now, perhaps because others yield; false if it has to wait."""


class DeviceAwaits(msgspec.Struct, frozen=True, kw_only=True):
    """Part of an apply that concerns one of several devices."""

    revision: int
    """Revision of the device's own server after the apply."""
    awaited: dict[str, str]
    """States that tenants of the device settle in, as in `ApplyTold`."""
    what_if: WhatIfFacts | None = None
    """Facts for a simulation of this device, as in `ApplyTold`."""


class ApplyTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to an apply: the difference to the present configuration, and its effects."""

    applied: bool
    """False after a dry run, and if nothing differs."""
    revision: int
    added: tuple[str, ...]
    changed: tuple[ChangeTold, ...]
    removed: tuple[str, ...]
    roster: tuple[str, ...]
    fitting: tuple[FittingTold, ...]
    awaited: dict[str, str]
    """State that each tenant settles in, ``absent`` if it is removed. Tenants that a client need
    not wait for are left out.
    """
    lines: tuple[str, ...]
    """The same answer in sentences."""
    what_if: WhatIfFacts | None = None
    """Facts for a simulation, if a dry run asked for them and something differs; else None."""
    devices: dict[str, DeviceAwaits] = {}
    """Parts of the devices that it concerns, by device, if several are served."""
    http: tuple[str, ...] = ()
    """Limits of clients, and files of the certificate, that change."""
    placement: tuple[str, ...] = ()
    """Rules of placement that change, with several devices."""


class ConfigTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /config``."""

    revision: int
    folder: str
    """Folder that paths are relative to."""
    configuration: dict[str, Any]
    """Present configuration as it was written, secrets included."""
