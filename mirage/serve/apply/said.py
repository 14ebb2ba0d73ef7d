"""Sentences about an apply. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mirage.control.roster.fitting import Fitting
from mirage.serve.apply.difference import ConfigDifference, TenantChange
from mirage.units import size

NOTHING = "nothing differs from what holds"
NO_STATE = "changes end with the server: start it with --state FILE to keep them"


def fixed(keys: Iterable[str]) -> str:
    """Message that a change of these keys needs another start of the server."""
    return f"{', '.join(keys)} cannot change while the server runs: start it again for that"


def lines(
    change: ConfigDifference, outlook: Iterable[Fitting], *, dry_run: bool, keeps: bool
) -> list[str]:
    """Sentences about a difference: one for each tenant that it concerns, and those for keys that
    concern all tenants.

    With `dry_run` they say what would be changed, else what is. `keeps` is true if a state file
    keeps the changes.
    """
    if change.is_none:
        return [NOTHING]
    would = "would be " if dry_run else ""
    known = {one.name: f"; {_place(one)}" for one in outlook}
    said = [f"{name}: {would}added{known.get(name, '')}" for name in change.added]
    for one in change.changed:
        place = known.get(one.name, "") if one.restart else ""
        said.append(f"{one.name}: {would}changed, {_keys(one)}{place}")
    said += [
        f"{name}: {would}removed when its requests have ended, and its KV cache is erased"
        for name in change.removed
    ]
    if change.roster:
        said.append(f"{', '.join(change.roster)}: {would}changed, at once")
    said += of_keys(change.http, dry_run=dry_run)
    if not keeps and not dry_run:
        said.append(NO_STATE)
    return said


def of_keys(keys: Collection[str], *, dry_run: bool) -> list[str]:
    """A sentence on keys that change immediately, if any do; with `dry_run`, that would change."""
    would = "would be " if dry_run else ""
    return [f"{', '.join(keys)}: {would}changed, at once"] if keys else []


def _keys(one: TenantChange) -> str:
    parts = []
    if one.at_once:
        parts.append(f"{', '.join(one.at_once)} at once")
    if one.restart:
        parts.append(f"{', '.join(one.restart)} with its next engine: one that it has starts anew")
    return "; ".join(parts)


def _place(one: Fitting) -> str:
    if one.spare >= 0:
        return f"it takes {size(one.nbytes)}, and {size(one.spare)} stay free"
    missing = f"it takes {size(one.nbytes)}, of which {size(-one.spare)} are missing"
    if one.yields:
        return f"{missing}: {', '.join(one.yields)} would yield now"
    return f"{missing}: it waits until others may yield"
