"""Origin of a result, with which it can be repeated: command, versions, configuration."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from mirage.secrets import redacted
from mirage.tools.replay.preparation import ReplayOptions, ReplayPlan
from mirage.tools.replay.report import ReplayProvenance
from mirage.tools.report.origin import versions

FLAGS = {
    "policies": "--policy",
    "think_s": "--think",
    "abandon_s": "--abandon",
    "warm_up_s": "--warm-up",
}
"""Options whose name differs from that of their field."""


def of(plan: ReplayPlan, options: ReplayOptions) -> ReplayProvenance:
    """Command, versions and configuration that repeat the measurement of `plan`."""
    return ReplayProvenance(
        command=command(plan.config_path, options),
        versions=versions(),
        configuration=plan.config.model_dump(mode="json"),
    )


def command(config: Path, options: ReplayOptions) -> str:
    """The command line that repeats this replay, without the key."""
    words = ["mirage", "replay", str(config)]
    defaults = ReplayOptions()
    for field in fields(ReplayOptions):
        value = getattr(options, field.name)
        if field.name == "key" or value == getattr(defaults, field.name):
            continue
        words += [FLAGS.get(field.name, "--" + field.name.replace("_", "-")), _written(value)]
    return shlex.join(words)


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ":".join(map(_written, value))
    return repr(value) if isinstance(value, float) else str(redacted(value))
