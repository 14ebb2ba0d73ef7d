"""Ablations: rules without a setting, changed for a measurement in a process or a simulation."""

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
    """Context in which all `Rules` that this process derives from settings have these values.

    Raises `ConfigError` with one line for an unknown name or an impossible value.
    """
    checked(changes)
    made = Rules.of

    def of(remap: Remap) -> Rules:
        return made(remap).model_copy(update=changes)

    with patch.object(Rules, "of", of):
        yield


def setup(written: Mapping[str, Any], near: Path | None = None) -> Setup:
    """Setup of an experiment's content, which may have a key `ablations` with rules for all its
    policies.

    Raises `ConfigError` with one line; `ValidationError` for content of another shape.
    """
    rules = checked(written.get(KEY, {}))
    content = {key: value for key, value in written.items() if key != KEY}
    return Setup(Experiment.model_validate(content), near, known=with_rules(rules))


def with_rules(rules: Mapping[str, Any]) -> dict[str, Any]:
    """All known policies with these rules, except where a policy sets a rule itself."""
    return {name: replace(v, changes={**rules, **v.changes}) for name, v in KNOWN.items()}


def checked(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rules' values. Raises `ConfigError` for a name that is not in `NAMES`, or an
    impossible value.
    """
    if unknown := sorted(changes.keys() - set(NAMES)):
        raise ConfigError(f"ablation {unknown[0]!r}: choose from {', '.join(NAMES)}")
    validated(Rules, dict(changes), Path(KEY))
    return changes


def parsed(words: list[str]) -> dict[str, Any]:
    """Values of ``NAME=VALUE`` words, written as in YAML. Raises `ConfigError` with one line for a
    word of another form, an unknown name or an impossible value.
    """
    changes = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r}: write NAME=VALUE, with a name of {', '.join(NAMES)}")
        changes[name] = yaml.safe_load(value)
    return dict(checked(changes))
