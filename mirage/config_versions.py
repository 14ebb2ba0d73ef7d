"""Versions of the configuration file, and the steps from one to the next. Pure.

A file states its version, ``version: 1``; without one it has the first. An older file is translated
to the newest keys when it is read, so that a new release serves it too. `mirage check --upgrade`
prints the translation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Keys = Mapping[Any, Any]
"""Content of a configuration file as the YAML parser returns it."""
Step = Callable[[Keys], Keys]
"""Function that translates one version's content to the next version's keys, without ``version``.
Invalid values are left as they are: they are reported after the last step.
"""

KEY = "version"
STEPS: tuple[Step, ...] = ()
"""Steps from the first version on. The newest version is one more than their number."""


class UnknownVersionError(ValueError):
    """Error: this release cannot read a file's version; the message says what to do."""


def newest() -> int:
    """Version that this release writes."""
    return len(STEPS) + 1


def numbered(keys: Keys) -> dict[Any, Any]:
    """`keys` with the newest version's number first."""
    return {KEY: newest(), **keys}


def version_of(raw: Keys) -> int:
    """Version of a file, 1 if it states none. Raises `UnknownVersionError` unless it is a whole
    number from 1 to the newest.
    """
    told = raw.get(KEY, 1)
    if type(told) is not int or told < 1:
        raise UnknownVersionError(
            f"version is {told!r:.100}: write a whole number from 1 to {newest()}, or leave it out "
            "for 1"
        )
    if told > newest():
        raise UnknownVersionError(
            f"version is {told}, and {newest()} is the newest that this release reads: install a "
            f"newer release, or write the keys of version {newest()}"
        )
    return told


def upgraded(raw: Keys) -> dict[Any, Any]:
    """Content in the newest version's keys, with the version first. Raises `UnknownVersionError` as
    `version_of` does.

    If the file states no version and the newest is the first, none is added.
    """
    keys: Keys = {key: value for key, value in raw.items() if key != KEY}
    for step in STEPS[version_of(raw) - 1 :]:
        keys = step(keys)
    return numbered(keys) if newest() > 1 or KEY in raw else dict(keys)
