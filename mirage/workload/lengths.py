"""Lengths of requests: named distributions in `configs/lengths.yaml`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import PositiveFloat

import configs
from mirage.config import ConfigError, Strict, read_yaml, validated

OF_TRACE = "trace"
"""Not a distribution: the lengths of the rows that arrivals are taken from."""


class Lengths(Strict):
    """Lognormal numbers of tokens; `sigma` is that of the logarithm."""

    prompt_mean: PositiveFloat
    prompt_sigma: PositiveFloat
    output_mean: PositiveFloat
    output_sigma: PositiveFloat


def lengths(name: str) -> Lengths:
    """Raises `ConfigError` for a name that is not in `configs/lengths.yaml`."""
    known = _file(configs.HERE / "lengths.yaml")
    if name not in known:
        raise ConfigError(f"no lengths are named {name!r}: known are {', '.join(known)}")
    return known[name]


@lru_cache
def _file(path: Path) -> dict[str, Lengths]:
    return {str(k): validated(Lengths, v, path) for k, v in read_yaml(path).items()}
