"""A service level objective of one request, and whether a request met it. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from mirage.replay.client import Outcome


class SloError(ValueError):
    """Limits that cannot be read; the message is one line."""


@dataclass(frozen=True)
class Slo:
    """Upper limits of one request, in milliseconds; None is no limit.

    `itl_ms` bounds the longest gap between two of its tokens, which is what a reader sees.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2el_ms: float | None = None

    def limits(self) -> dict[str, float]:
        """Those that are given."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def met(self, outcome: Outcome) -> bool:
        """Whether the request completed within every limit."""
        if outcome.error is not None:
            return False
        took = figures_ms(outcome)
        return all(took[name] <= most for name, most in self.limits().items())


def figures_ms(outcome: Outcome) -> dict[str, float]:
    """A completed request's figures in milliseconds, by the names of `Slo`."""
    after_first = outcome.e2el_s - outcome.ttft_s
    return {
        "ttft_ms": outcome.ttft_s * 1e3,
        "tpot_ms": after_first / max(outcome.output_tokens - 1, 1) * 1e3,
        "itl_ms": max(outcome.itl_s, default=0.0) * 1e3,
        "e2el_ms": outcome.e2el_s * 1e3,
    }


def parse(text: str) -> Slo:
    """``"ttft_ms=500,tpot_ms=50"``. Raises `SloError`."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in Slo.__dataclass_fields__:
            known = ", ".join(Slo.__dataclass_fields__)
            raise SloError(f"--slo {text!r}: write NAME=MILLISECONDS, names are {known}")
        if name in limits:
            raise SloError(f"--slo {text!r}: {name} is given twice: keep one")
        limits[name] = _positive(text, name, value)
    return Slo(**limits)


def _positive(text: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise SloError(f"--slo {text!r}: {name} {value!r} is no time: use milliseconds above 0")
    return number
