"""Rendezvous hashing with bounded loads: a key keeps its replica while others come and go.

Each name has a number for each key, and the key belongs to the name with the highest one (Thaler
and Ravishankar, 1998). So a name that goes moves only its own keys. A name that is too busy is
passed over: none gets a request of a key beyond `spread` times its part of all present requests,
rounded up (Mirrokni, Thorup and Zadimoghaddam, arXiv 1608.01350). Parts are proportional to the
rates at which busy replicas end requests (`Replica.rate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from math import ceil

PLACES = 9
"""Decimal places to which a part is rounded, so that 3.0000000000000004 requests count as 3."""


def ranking(key: str, names: Iterable[str]) -> list[str]:
    """Return names by their numbers for a key, the highest first. The order is the same in every
    process."""
    return sorted(names, key=lambda name: (_number(key, name), name), reverse=True)


def _number(key: str, name: str) -> bytes:
    text = f"{len(key)}:{key}{name}".encode(errors="surrogatepass")
    return blake2b(text, digest_size=8).digest()


def bounds(loads: Mapping[str, int], rates: Mapping[str, float], spread: float) -> dict[str, int]:
    """Return the largest number of requests of each name once one more has come: `spread` times its
    part, rounded up.

    Parts are proportional to `rates`, the requests a second that each name ends, which are above 0.
    With a spread of 1 or more at least one name is below its bound.
    """
    total, rate = sum(loads.values()) + 1, sum(rates[name] for name in loads)
    parts = {name: spread * total * rates[name] / rate for name in loads}
    return {name: ceil(round(part, PLACES)) for name, part in parts.items()}


def bounded(key: str, loads: Mapping[str, int], rates: Mapping[str, float], spread: float) -> str:
    """Return the first name in the ranking of a key whose load is below its bound by `bounds`, or
    the first of all if none is. `loads` has at least one name.

    With a `spread` of 1.25 a bound is a quarter above the name's part of all requests, rounded up.
    """
    most = bounds(loads, rates, spread)
    ranked = ranking(key, loads)
    return next((name for name in ranked if loads[name] < most[name]), ranked[0])
