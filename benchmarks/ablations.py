"""Rules that are no setting, changed to be measured: in a process that decides, or simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from benchmarks.variants import KNOWN
from mirage.config import ConfigError, Remap, validated
from mirage.control.rules import Rules
from mirage.simulate.experiment import Experiment, Setup

NAMES = sorted(Rules.model_fields.keys() - Remap.model_fields)
KEY = "ablations"


@contextmanager
def ablated(**changes: Any) -> Iterator[None]:
    """Context in which the `Rules` that this process makes of settings have these values.

    Raises `ConfigError` with one line.
    """
    checked(changes)
    made = Rules.of

    def of(remap: Remap) -> Rules:
        return made(remap).model_copy(update=changes)

    with patch.object(Rules, "of", of):
        yield


def setup(written: Mapping[str, Any], near: Path | None = None) -> Setup:
    """An experiment's content that may have `ablations`, rules of all its policies.

    Raises `ConfigError` with one line; `ValidationError` for content of another shape.
    """
    rules = checked(written.get(KEY, {}))
    content = {key: value for key, value in written.items() if key != KEY}
    return Setup(Experiment.model_validate(content), near, known=with_rules(rules))


def with_rules(rules: Mapping[str, Any]) -> dict[str, Any]:
    """All policies that are known, under these rules where they do not change them themselves."""
    return {name: replace(v, changes={**rules, **v.changes}) for name, v in KNOWN.items()}


def checked(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises `ConfigError` for a name that is none of `NAMES`, or a value that it cannot have."""
    if unknown := sorted(changes.keys() - set(NAMES)):
        raise ConfigError(f"ablation {unknown[0]!r}: choose from {', '.join(NAMES)}")
    validated(Rules, dict(changes), Path(KEY))
    return changes


def parsed(words: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` words, values as in YAML. Raises `ConfigError` with one line."""
    changes = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r}: write NAME=VALUE, with a name of {', '.join(NAMES)}")
        changes[name] = yaml.safe_load(value)
    return dict(checked(changes))
