"""Cost and gain of lending: in turns how much of it pays, at once after how long.

A model that takes turns lends its layers while it is suspended; when its turn comes they are
brought back over the link, and those of others go instead. So what is lent costs its time on
the link once in each turn, and brings larger batches to all of them.

At once an idle model has its layers brought back when it wakes, and nobody knows when that is.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, log, sqrt

PARAMETERS_PART = 1 / 3
"""Of a decode step, at most the part that is taken not to grow with the batch.

Low, so that lending is rather too little than too much: large batches of long contexts come
down to it.
"""
LEAST_GAIN = 0.05
"""More tokens a second, way back paid, below which nothing is lent: less is hardly seen, and on
real engines it was none (1 layer at a gain of 0.04, and end-to-end times 14 % longer)."""


@lru_cache(maxsize=64)
def worth_lending(
    pool_bytes: int,
    turn_bytes: float,
    part: float = PARAMETERS_PART,
    *,
    most: float = inf,
    lending: bool = False,
) -> int:
    """Bytes of layers up to which lending brings more than it costs, at most `most`.

    `pool_bytes`: KV memory with all layers in place; `turn_bytes`: what the link loads in a turn;
    `part`: what of a decode step does not grow with the batch, such as reading the parameters;
    `lending`: whether layers are lent already.

    With x times the pool lent, batches are 1 + x times as large, and a step of which the part p
    stays takes p + (1 - p)(1 + x) times as long: tokens a second are the quotient g.
    Bringing x back takes the part x/r of a turn, r = turn_bytes / pool_bytes. The best x is where
    g'/g, which is p / ((1 + x)(1 + (1 - p) x)), has fallen to the cost of the last byte, 1/r.
    Nothing is lent for less than `LEAST_GAIN`, and nothing goes on being for less than half of it:
    `part` is measured and moves, and what is called back has to be computed anew.
    """
    if pool_bytes <= 0 or turn_bytes <= 0:
        return 0
    p = min(part, PARAMETERS_PART)
    # (1 - p) x^2 + (2 - p) x + 1 - p r = 0
    square, linear, constant = 1 - p, 2 - p, 1 - p * turn_bytes / pool_bytes
    if constant >= 0:
        return 0
    x = (-linear + sqrt(linear * linear - 4 * square * constant)) / (2 * square)
    x = min(x, most / pool_bytes)
    gain = log((1 + x) / (p + (1 - p) * (1 + x))) - x * pool_bytes / turn_bytes
    return int(x * pool_bytes) if gain >= LEAST_GAIN / (2 if lending else 1) else 0


def rest_enough(way_back_s: float, longest_s: float, most_s: float) -> float:
    """Seconds without work after which a model that runs beside others lends all it may.

    `way_back_s`: what loading all of that takes, 0 while unknown; `longest_s`: the longest that
    it lately had no work before more came; `most_s` is always enough.

    Then bringing it back takes `LEAST_GAIN` of the time that was waited for it at most, and who
    never paused for half as long is likely to pause for longer than so far.
    """
    if way_back_s <= 0:
        return most_s
    return min(most_s, max(way_back_s / LEAST_GAIN, 2 * longest_s))
