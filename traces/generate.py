"""The bundled sample trace, made from a seed: ``python -m traces.generate [FILE]``.

Three levels of arrivals, as Azure's published trace of code requests shows them when its gaps are
sorted: *spells* of work minutes apart, *volleys* of requests a few seconds apart inside a spell,
requests tens of milliseconds apart inside a volley. Lengths are those of Azure's published trace of
conversations: so the bursts of code requests come with long answers.

Writes Azure's 2023 format to the byte: header, CRLF, seven fractional digits, no line end
after the last row. The same seed gives the same file.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from traces import SAMPLE

SEED = 535
"""Seed of the trace with the most uneven gaps: of the first thousand seeds, those whose traces are
longer than 1,150 s were compared."""
REQUESTS = 600
START = datetime(2024, 1, 15, 9, 0)
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
TICKS = 10_000_000
"""Ticks of 100 ns in a second: the resolution of the published timestamps."""

QUIET_S = (30.0, 217.0)
"""Shortest and longest pause between spells; 217 s is the longest gap in the code trace."""
VOLLEYS = 5
"""Mean volleys in a spell."""
BETWEEN_VOLLEYS_S = 7.0
WITHIN_VOLLEY_S = 0.03
VOLLEY = (2, 70)
"""Fewest and most requests in a volley; small ones are far more common."""


def main(path: Path = SAMPLE) -> None:
    """Write the trace to `path`."""
    path.write_bytes(render(SEED, REQUESTS))


def render(seed: int, requests: int) -> bytes:
    """The whole file, `requests` rows after the header."""
    # Two streams: other lengths leave the arrivals as they are.
    arrivals, lengths = random.Random(f"arrivals {seed}"), random.Random(f"lengths {seed}")
    ticks = 0
    rows = [HEADER]
    for gap in gaps(arrivals, requests):
        ticks += round(gap * TICKS)
        context, output = _lengths(lengths)
        rows.append(f"{_stamp(ticks)},{context},{output}")
    return "\r\n".join(rows).encode()


def gaps(rng: random.Random, requests: int) -> Iterator[float]:
    """Seconds since the request before, the first one 0."""
    gap, sent = 0.0, 0
    while True:
        for _ in range(rng.randint(VOLLEYS - 2, VOLLEYS + 2)):
            for _ in range(_volley(rng)):
                yield gap
                sent += 1
                if sent == requests:
                    return
                gap = rng.expovariate(1 / WITHIN_VOLLEY_S)
            gap = rng.expovariate(1 / BETWEEN_VOLLEYS_S)
        gap = _log_uniform(rng, *QUIET_S)


def _volley(rng: random.Random) -> int:
    return round(_log_uniform(rng, *VOLLEY))


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return low * math.pow(high / low, rng.random())


def _lengths(rng: random.Random) -> tuple[int, int]:
    """Context and output, in tokens: lognormal, cut at the published P99."""
    return _lognormal(rng, 1200, 0.85, 29, 4142), _lognormal(rng, 222, 0.85, 16, 601)


def _lognormal(rng: random.Random, mean: float, sigma: float, low: int, high: int) -> int:
    drawn = rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
    return min(max(round(drawn), low), high)


def _stamp(ticks: int) -> str:
    seconds, fraction = divmod(ticks, TICKS)
    return f"{START + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}.{fraction:07d}"


if __name__ == "__main__":
    main(*(Path(name) for name in sys.argv[1:2]))
