"""Changes of a configuration as it was written: keys of a tenant, and a tenant that goes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from mirage.errors import InputRefused

Raw = dict[Any, Any]


def with_keys(raw: Raw, name: str, keys: Mapping[str, Any]) -> Raw:
    """Other values of keys of a tenant; None has a key as if it was not written.

    ``engine_args.seed`` is a key in a mapping. Raises `InputRefused` for one that leads nowhere,
    and for the name.
    """
    if "name" in keys:
        raise InputRefused("name is no key to set: a tenant of another name is another tenant")
    edited = deepcopy(raw)
    for key, value in keys.items():
        _set(_section(edited, name), key.split("."), value, key)
    return edited


def without(raw: Raw, name: str) -> Raw:
    """All but one tenant, also where `mirage replay` is told of it."""
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
