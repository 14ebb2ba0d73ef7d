"""Rendezvous hashing with bounded loads: a key stays where it is while replicas come and go.

Each name has a number for each key, and the key belongs to the highest (Thaler and Ravishankar,
1998). So a name that goes moves its own keys alone. A name that is too busy is passed over: none
has more than `spread` times its part of all requests (Mirrokni, Thorup and Zadimoghaddam, arXiv
1608.01350).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from math import ceil

PLACES = 9
"""Places of a part that count, so that 3.0000000000000004 requests are 3."""


def ranking(key: str, names: Iterable[str]) -> list[str]:
    """Names by their numbers for a key, the highest first. The same everywhere and always."""
    return sorted(names, key=lambda name: (_number(key, name), name), reverse=True)


def _number(key: str, name: str) -> bytes:
    text = f"{len(key)}:{key}{name}".encode(errors="surrogatepass")
    return blake2b(text, digest_size=8).digest()


def bounds(loads: Mapping[str, int], rates: Mapping[str, float], spread: float) -> dict[str, int]:
    """Most requests of each name once one more has come: `spread` times its part, rounded up.

    Parts are by `rates`, which are above 0. With a spread of 1 or more at least one is below.
    """
    total, rate = sum(loads.values()) + 1, sum(rates[name] for name in loads)
    parts = {name: spread * total * rates[name] / rate for name in loads}
    return {name: ceil(round(part, PLACES)) for name, part in parts.items()}


def bounded(key: str, loads: Mapping[str, int], rates: Mapping[str, float], spread: float) -> str:
    """First name in the ranking of a key that is below its bound. `loads` has at least one."""
    most = bounds(loads, rates, spread)
    ranked = ranking(key, loads)
    return next((name for name in ranked if loads[name] < most[name]), ranked[0])
