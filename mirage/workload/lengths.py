"""Lengths of requests: named distributions in `configs/lengths.yaml`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import PositiveFloat

import configs
from mirage.config import ConfigError, Strict, read_yaml, validated

OF_TRACE = "trace"
"""Name for no distribution: the lengths of the trace's rows are used."""


class Lengths(Strict):
    """Lognormal numbers of tokens; `sigma` is the standard deviation of the logarithm."""

    prompt_mean: PositiveFloat
    prompt_sigma: PositiveFloat
    output_mean: PositiveFloat
    output_sigma: PositiveFloat


def lengths(name: str) -> Lengths:
    """Distribution of that name in `configs/lengths.yaml`. Raises `ConfigError` if there is
    none.
    """
    known = _file(configs.HERE / "lengths.yaml")
    if name not in known:
        raise ConfigError(f"no lengths are named {name!r}: known are {', '.join(known)}")
    return known[name]


@lru_cache
def _file(path: Path) -> dict[str, Lengths]:
    return {str(k): validated(Lengths, v, path) for k, v in read_yaml(path).items()}
