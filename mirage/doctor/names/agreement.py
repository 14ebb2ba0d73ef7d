"""Comparison of our sources with a version of vLLM: each name that we use must exist and fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mirage.doctor.names.signature import why_no_replacement, why_not_called, without_self
from mirage.doctor.names.uses import Either, NameUse, Need

Said = Callable[[str], str | None]
"""Function that returns the entry of a name in one version of vLLM, its parameters or its kind as
`Tree` has them; None if that version has no such name.
"""


def names(needs: Iterable[Need]) -> dict[str, bool]:
    """Names that are needed; True for those whose parameters matter."""
    found: dict[str, bool] = {}
    for use in (use for need in needs for use in _uses(need)):
        fits = use.call is not None or use.replacement is not None
        found[use.name] = found.get(use.name, False) or fits
    return found


def _uses(need: Need) -> Iterator[NameUse]:
    if isinstance(need, NameUse):
        yield need
    else:
        for each in need.lists:
            for inner in each:
                yield from _uses(inner)


def problems(needs: Iterable[Need], said: Said, known: Said) -> list[str]:
    """Faults of the names that we use: one line for each that is missing or does not fit.

    `said` looks names up in the vLLM that is checked, `known` in the versions that were tried. A
    missing name that may be defined by our own classes is a fault only if `known` has it.
    """
    found = (line for need in needs for line in _problems(need, said, known))
    return [*dict.fromkeys(found)]


def _problems(need: Need, said: Said, known: Said) -> list[str]:
    if isinstance(need, Either):
        ways = [[line for n in each for line in _problems(n, said, known)] for each in need.lists]
        return [] if not all(ways) else ways[0]
    there = said(need.name)
    if there is None:
        gone = not need.ours or known(need.name) is not None
        return [f"{need.name} is not there ({need.where})"] if gone else []
    why = None if there.startswith("<") else _why_unfit(need, there)
    return [f"{need.name}({there}): {why} ({need.where})"] if why else []


def _why_unfit(use: NameUse, there: str) -> str | None:
    if use.replacement is not None:
        ours = why_no_replacement(without_self(there), without_self(use.replacement))
        return f"ours: {ours}" if ours else None
    if use.call is not None:
        return why_not_called(without_self(there) if use.bound else there, use.call)
    return None
