"""Versions of the configuration file, and the steps from one to the next. Pure.

A file says ``version: 1``; one that says none has the first. What an older file says is put into
today's words when it is read, so that servers go on over a new release; `mirage check --upgrade`
prints the file in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Keys = Mapping[Any, Any]
"""Content of a configuration file, as YAML has it."""
Step = Callable[[Keys], Keys]
"""Content of one version in the words of the next, without the key ``version``. It leaves alone
what is not as it should be: mistakes are told of once all steps are done."""

KEY = "version"
STEPS: tuple[Step, ...] = ()
"""Steps from the first version on; the newest version is one more than their number."""


class UnknownVersionError(ValueError):
    """A version that this release does not read; the message says what to do."""


def newest() -> int:
    """Version that this release writes."""
    return len(STEPS) + 1


def numbered(keys: Keys) -> dict[Any, Any]:
    """Keys of the newest version, which say so first."""
    return {KEY: newest(), **keys}


def version_of(raw: Keys) -> int:
    """Version that a file has. Raises `UnknownVersionError`."""
    told = raw.get(KEY, 1)
    if type(told) is not int or told < 1:
        raise UnknownVersionError(
            f"version is {told!r}: write a whole number from 1 to {newest()}, or leave it out for 1"
        )
    if told > newest():
        raise UnknownVersionError(
            f"version is {told}, and {newest()} is the newest that this release reads: install a "
            f"newer release, or write the keys of version {newest()}"
        )
    return told


def upgraded(raw: Keys) -> dict[Any, Any]:
    """Content in the newest version's words, with its number first. Raises `UnknownVersionError`.

    Without a number it gets none where the newest version is the first.
    """
    keys: Keys = {key: value for key, value in raw.items() if key != KEY}
    for step in STEPS[version_of(raw) - 1 :]:
        keys = step(keys)
    return numbered(keys) if newest() > 1 or KEY in raw else dict(keys)
