"""Edits of a configuration as the user wrote it: keys of a tenant, and a tenant removed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from mirage.config import TenantSection
from mirage.errors import InputRefused
from mirage.problems import first_problem

Raw = dict[Any, Any]
OF_PLACES = frozenset({"device", "devices"})
"""Keys of a tenant that name its devices, in a file with several."""


def with_keys(raw: Raw, name: str, keys: Mapping[str, Any]) -> Raw:
    """Copy of `raw` with other values for keys of tenant `name`; None removes a key.

    ``engine_args.seed`` is a key inside a mapping. Raises `InputRefused` for a path through a value
    that is no mapping, and for the key `name`.
    """
    if "name" in keys:
        raise InputRefused("name is no key to set: a tenant of another name is another tenant")
    edited = deepcopy(raw)
    for key, value in keys.items():
        _set(_section(edited, name), key.split("."), value, key)
    return edited


def check_keys(raw: Raw, name: str) -> None:
    """Raise `InputRefused` for a value in the section of tenant `name` that its key does not take.

    The message names the key as a command does that sets it, and not by its place in the file.
    """
    every = _section(raw, name)
    section = {key: value for key, value in every.items() if key not in OF_PLACES}
    try:
        TenantSection.model_validate(section)
    except ValidationError as error:
        problem = first_problem(error, section, TenantSection)
        raise InputRefused(f"tenant {name!r}: {problem}") from None


def without(raw: Raw, name: str) -> Raw:
    """Copy of `raw` without tenant `name`, and without this tenant's entries in section
    `replay`."""
    edited = deepcopy(raw)
    edited["tenants"] = [one for one in edited["tenants"] if one["name"] != name]
    replay = edited.get("replay") or {}
    for part in (replay.get("trace"), (replay.get("traffic") or {}).get("weights")):
        if isinstance(part, dict):
            part.pop(name, None)
    if replay.get("trace") == {}:
        del replay["trace"]
    return edited


def _section(raw: Raw, name: str) -> Raw:
    found: Raw = next(one for one in raw["tenants"] if one["name"] == name)
    return found


def _set(section: Raw, path: list[str], value: Any, key: str) -> None:
    for step in path[:-1]:
        if value is None and step not in section:
            return
        section = section.setdefault(step, {})
        if not isinstance(section, dict):
            raise InputRefused(f"{key}: {step} has no keys")
    if value is None:
        section.pop(path[-1], None)
    else:
        section[path[-1]] = value
