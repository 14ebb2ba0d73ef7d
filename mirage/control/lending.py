"""Cost and gain of lending: in turns how much of it pays, at once after how long.

A model that takes turns lends its layers while it is suspended; when its turn comes they are
brought back over the link, and those of others go instead. So what is lent costs its time on
the link, between two models once in each turn, and brings larger batches to those that lack memory.

At once an idle model has its layers brought back when it wakes, and nobody knows when that is.
While nobody waits for its memory, it rests for long beside its way back. While somebody does, it
lends once it has paused for longer than it lately used to, or for as long as lending takes to pay
for the way back and for what is computed anew then: that costs at most twice what would have been
best, had one known when it wakes.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, log, sqrt

PARAMETERS_PART = 1 / 3
"""Part of a decode step that is taken not to grow with the batch by who has not measured it.

Low, so that lending is rather too little than too much: large batches of long contexts come
down to it.
"""
MOST_PART = 1 / 2
"""Most of that part, whatever was measured: batches are small before memory is short."""
LEAST_GAIN = 0.02
"""More tokens a second, way back paid, below which nothing is lent: less is hardly seen. On top
comes what is not computed anew, since it is not preempted."""
WAY_BACK_PART = 0.05
"""Part of the time that memory was waited for which its way back takes at most."""
CALLED_IN = 1 / 4
"""Part of the KV memory that an idle model can lend at once which is computed anew when it wakes:
some was never filled, and some requests end meanwhile. Chosen by 42 simulated worlds."""
HALVINGS = 20
"""Steps of a search, each of which halves what is left."""


@lru_cache(maxsize=64)
def worth_lending(
    kv_bytes: int,
    turn_bytes: float,
    part: float = PARAMETERS_PART,
    *,
    most: float = inf,
    least: float = LEAST_GAIN,
    lending: bool = False,
    gaining: float = 1.0,
) -> int:
    """Bytes of layers up to which lending brings more than it costs, at most `most`.

    `kv_bytes`: KV memory with all layers in place; `turn_bytes`: what the link loads from one
    way back to the next; `part`: what of a decode step does not grow with the batch, such as
    reading the parameters; `lending`: whether layers are lent already; `gaining`: part of the turns
    whose batches grow.

    With x times `kv_bytes` lent, batches are 1 + x times as large, and a step of which the part p
    stays takes p + (1 - p)(1 + x) times as long: tokens a second are the quotient g.
    Bringing x back takes the part x/r of each turn, r = turn_bytes / kv_bytes, and the part k of
    them gain. The best x is where k g'/g, which is k p / ((1 + x)(1 + (1 - p) x)), has fallen to
    the cost of the last byte, 1/r.
    Nothing is lent for less than `least`, and nothing goes on being for less than half of it:
    `part` is measured and moves, and what is called back has to be computed anew.
    """
    if kv_bytes <= 0 or turn_bytes <= 0:
        return 0
    p = min(part, MOST_PART)
    # (1 - p) x^2 + (2 - p) x + 1 - k p r = 0
    square, linear, constant = 1 - p, 2 - p, 1 - gaining * p * turn_bytes / kv_bytes
    if constant >= 0:
        return 0
    x = (-linear + sqrt(linear * linear - 4 * square * constant)) / (2 * square)
    x = min(x, most / kv_bytes)
    gain = _gain(x, p, turn_bytes / kv_bytes, gaining)
    return int(x * kv_bytes) if gain >= least / (2 if lending else 1) else 0


def worth_keeping(
    kv_bytes: int, turn_bytes: float, part: float, *, most: float, running_bytes: int
) -> int:
    """Bytes of layers up to which lending goes on where it has begun; see `worth_lending`.

    `running_bytes`: what running requests want beyond `kv_bytes`.

    What is called back is preempted, and computed anew. So as much stays as would be best at
    `MOST_PART`, or as running requests grow to, while lending that costs `LEAST_GAIN` of the tokens
    at most.
    """
    best = worth_lending(kv_bytes, turn_bytes, MOST_PART, most=most, lending=True)
    wanted = min(max(best, running_bytes), most)
    return int(min(wanted, _bearable(kv_bytes, turn_bytes, part))) if wanted > 0 else 0


@lru_cache(maxsize=64)
def _bearable(kv_bytes: int, turn_bytes: float, part: float) -> float:
    """Bytes up to which lending costs `LEAST_GAIN` of the tokens at most."""
    if kv_bytes <= 0 or turn_bytes <= 0:
        return 0.0
    p, ratio = min(part, MOST_PART), turn_bytes / kv_bytes
    low, high = 0.0, ratio  # a way back of a whole turn
    for _ in range(HALVINGS):
        x = (low + high) / 2
        low, high = (x, high) if _gain(x, p, ratio) >= -LEAST_GAIN else (low, x)
    return low * kv_bytes


def _gain(x: float, p: float, ratio: float, gaining: float = 1.0) -> float:
    """Logarithm of the tokens a second with x times `kv_bytes` lent, over those without."""
    return gaining * log((1 + x) / (p + (1 - p) * (1 + x))) - x / ratio


def rest_enough(
    way_back_s: float, longest_s: float, most_s: float, *, pays_after_s: float | None = None
) -> float:
    """Seconds without work after which a model that runs beside others lends all it may.

    `way_back_s`: what loading all of that takes, 0 while unknown; `longest_s`: the longest that
    it lately had no work before more came; `most_s` is always enough; `pays_after_s`: seconds after
    which lending has paid (`pays_after`), None while nobody waits for memory.

    Who never paused for half as long is likely to pause for longer than so far. If somebody waits,
    one rests for as long as the way back takes at least, and no longer than until it would have
    paid. Else bringing it back takes `WAY_BACK_PART` of the time that was waited for it at most.
    """
    if way_back_s <= 0:
        return most_s
    if pays_after_s is not None:
        return min(most_s, pays_after_s, max(way_back_s, 2 * longest_s))
    return min(most_s, max(way_back_s / WAY_BACK_PART, 2 * longest_s))


@lru_cache(maxsize=64)
def pays_after(lent: float, part: float, way_back_s: float, anew_s: float) -> float:
    """Seconds of lending that bring as much as it costs to call in all that was lent.

    `lent`: of the KV memory with all layers in place; `part`: as in `worth_lending`, of those who
    wait; `anew_s`: seconds in which as much KV is computed, by requests that get no tokens then.
    """
    gain = _gain(lent, min(part, MOST_PART), inf)
    return way_back_s + CALLED_IN * anew_s / gain if gain > 0 else inf
