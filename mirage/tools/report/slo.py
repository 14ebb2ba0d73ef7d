"""Service level objective: upper limits for the latencies of one request, and a check of them.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol

from mirage.config import ConfigError

LARGEST_MS = 1e7


class SentRequest(Protocol):
    """A request that was sent or simulated, with its latencies."""

    def latencies_ms(self) -> Mapping[str, float] | None:
        """This request's latencies in milliseconds, by the names of the limits of `Slo`; None if it
        did not complete."""


@dataclass(frozen=True)
class Slo:
    """Upper limits of one request in milliseconds; None is no limit.

    `itl_ms` limits the longest gap between two of its tokens, which is the gap that a reader
    notices.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2el_ms: float | None = None

    def limits(self) -> dict[str, float]:
        """Limits that are set, by name."""
        each = ((name, getattr(self, name)) for name in NAMES)
        return {name: limit for name, limit in each if limit is not None}

    def met(self, request: SentRequest) -> bool:
        """True if the request completed, within every limit."""
        took = request.latencies_ms()
        if took is None:
            return False
        return all(took[name] <= most for name, most in self.limits().items())

    def __str__(self) -> str:
        """The limits as text, in the form that `parse` reads: ``ttft_ms=200,tpot_ms=50``."""
        return ",".join(f"{name}={limit:g}" for name, limit in self.limits().items())


NAMES = tuple(field.name for field in fields(Slo))


def parse(text: str) -> Slo:
    """Limits in a text as ``"ttft_ms=500,tpot_ms=50"``. Raises `ConfigError` with one line for an
    unknown or repeated name, or a limit that is no time.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in NAMES:
            raise ConfigError(
                f"--slo {text!r}: {part.strip()!r} is no limit, write NAME=MILLISECONDS, "
                f"names are {', '.join(NAMES)}"
            )
        if name in limits:
            raise ConfigError(f"--slo {text!r}: {name} is given twice: keep one")
        limits[name] = _milliseconds(text, name, value)
    return Slo(**limits)


def _milliseconds(text: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= LARGEST_MS:
        raise ConfigError(
            f"--slo {text!r}: {name} {value!r} is no time: use milliseconds above 0, at most "
            f"{LARGEST_MS:g}"
        )
    return number
