"""Cost and gain of lending layers: under temporal sharing the number of bytes that pays, under
spatial sharing the idle time after which lending pays.

A model that takes turns lends its layers while it is suspended. When its turn comes they are
brought back over the link, and layers of other models are given away instead. So lent bytes take
time of the link, between two models once in each turn. They give larger batches to models that lack
memory, and spare preemptions of requests that grow.

Under spatial sharing an idle model gets its layers back when it wakes, at a time that is not known.
While no other model waits for its memory, it lends everything only after a rest that is long
compared with its way back. While one waits, it lends once it has paused for longer than it lately
used to, or for as long as lending takes to pay for the way back and for what is computed
anew then. That costs at most twice as much as the best choice with the time of the wake known.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, log, sqrt

PARAMETERS_PART = 1 / 3
"""Part of a decode step that is assumed not to grow with the batch while it is not measured.

It is low, as with large batches of long contexts, so that lending is too small rather than too
large.
"""
MOST_PART = 1 / 2
"""Upper limit of the part of a decode step that counts as not growing with the batch, whatever was
measured: batches are small before memory is short."""
LEAST_GAIN = 0.02
"""Least relative gain in tokens a second, with the way back paid, for which layers are lent: a
smaller gain is hardly noticed. Preemptions that lending saves are a gain on top."""
RECOMPUTED_PART = 1 / 2
"""Largest relative loss of tokens a second by lending more than is best for larger batches, as a
multiple of the part of the time in which tokens of preempted requests are computed again. Lending
saves only some of this time. Chosen by the simulation of 60 worlds.
"""
LEAST_LOSS = 0.003
"""Least such loss; below it no more layers are lent than are best for larger batches."""
WAY_BACK_PART = 0.05
"""Largest ratio of the seconds of the way back to the seconds without work before all is lent."""
CALLED_IN = 1 / 4
"""Part of the KV memory lent by an idle model under spatial sharing that is computed anew when the
model wakes: some of it was never filled, and some requests end before. Chosen by the simulation of
42 worlds."""
HALVINGS = 20
"""Steps of a binary search."""


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
    """Return the bytes of layers up to which lending brings more than it costs, at most `most`.

    `kv_bytes`: KV memory with all layers in place; `turn_bytes`: bytes that the link loads from one
    way back to the next; `part`: the part of a decode step that does not grow with the batch, such
    as reading the parameters; `lending`: True if layers are lent already; `gaining`: part of the
    turns whose batches grow.

    With x times `kv_bytes` lent, batches are 1 + x times as large, and a step of which the part p
    does not grow takes p + (1 - p)(1 + x) times as long: tokens a second are the quotient g.
    Bringing x back takes the part x/r of each turn, r = turn_bytes / kv_bytes, and the part k of
    them gain. The best x is where k g'/g, which is k p / ((1 + x)(1 + (1 - p) x)), has fallen to
    the cost of the last byte, 1/r.

    Lending does not begin for a relative gain of less than `least` in tokens a second, and does not
    go on for less than half of it: `part` is measured and varies, and requests whose memory is
    called back have to be computed anew.
    """
    if kv_bytes <= 0 or turn_bytes <= 0:
        return 0
    p, ratio = min(part, MOST_PART), turn_bytes / kv_bytes
    x = min(_best(p, ratio, gaining), most / kv_bytes)
    gain = _gain(x, p, ratio, gaining)
    return int(x * kv_bytes) if gain >= least / (2 if lending else 1) else 0


def worth_sparing(
    kv_bytes: int,
    turn_bytes: float,
    part: float,
    *,
    most: float,
    recomputed_part: float,
    lending: bool = False,
    gaining: float = 1.0,
) -> int:
    """Return the bytes of layers up to which lending pays if it also spares preemptions; see
    `worth_lending`.

    `recomputed_part`: part of the time, 0 to 1, in which tokens of preempted requests are computed
    again.

    Running requests that can grow into lent memory are not preempted, which the gain of larger
    batches does not include. So more is lent than is best for larger batches, up to a further loss
    of tokens a second of the part `RECOMPUTED_PART` of that time, and of `LEAST_GAIN` at most. 0 if
    this loss is less than `LEAST_LOSS`, or than half of it while layers are lent.
    """
    loss = min(LEAST_GAIN, RECOMPUTED_PART * recomputed_part)
    if kv_bytes <= 0 or turn_bytes <= 0 or loss < LEAST_LOSS / (2 if lending else 1):
        return 0
    p, ratio = min(part, MOST_PART), turn_bytes / kv_bytes
    best = _best(p, ratio, gaining)
    x = _falls_to(_gain(best, p, ratio, gaining) - loss, best, p, ratio, gaining)
    return int(min(most, x * kv_bytes))


def worth_keeping(
    kv_bytes: int, turn_bytes: float, part: float, *, most: float, running_bytes: int
) -> int:
    """Return the bytes of layers up to which lending goes on where it has begun; see
    `worth_lending`.

    `running_bytes`: bytes that running requests want beyond `kv_bytes`.

    Requests whose memory is called back are preempted and computed anew. So the bytes stay that
    would be best at `MOST_PART`, or that running requests grow to, as long as lending them costs at
    most the part `LEAST_GAIN` of the tokens.
    """
    best = worth_lending(kv_bytes, turn_bytes, MOST_PART, most=most, lending=True)
    wanted = min(max(best, running_bytes), most)
    if wanted <= 0:
        return 0
    return int(min(wanted, _bearable(kv_bytes, turn_bytes, part)))


@lru_cache(maxsize=64)
def _bearable(kv_bytes: int, turn_bytes: float, part: float) -> float:
    """Return the bytes up to which lending costs at most the part `LEAST_GAIN` of the tokens."""
    if kv_bytes <= 0 or turn_bytes <= 0:
        return 0.0
    p, ratio = min(part, MOST_PART), turn_bytes / kv_bytes
    return _falls_to(-LEAST_GAIN, _best(p, ratio, 1.0), p, ratio, 1.0) * kv_bytes


def _best(p: float, ratio: float, gaining: float) -> float:
    """Return the x at which `_gain` is largest; 0 if no lending gains."""
    # (1 - p) x^2 + (2 - p) x + 1 - k p r = 0
    square, linear, constant = 1 - p, 2 - p, 1 - gaining * p * ratio
    if constant >= 0:
        return 0.0
    return (-linear + sqrt(linear * linear - 4 * square * constant)) / (2 * square)


def _falls_to(least: float, best: float, p: float, ratio: float, gaining: float) -> float:
    """Return the largest x, up to a way back of a whole turn, at which `_gain` is `least` or more;
    `best` is the x at which it is largest."""
    low, high = best, max(best, ratio)
    for _ in range(HALVINGS):
        x = (low + high) / 2
        low, high = (x, high) if _gain(x, p, ratio, gaining) >= least else (low, x)
    return low


def _gain(x: float, p: float, ratio: float, gaining: float = 1.0) -> float:
    """Return the logarithm of the ratio of tokens a second with x times `kv_bytes` lent to those
    without.

    `p` is the part of a step's time that does not grow with the batch. `ratio` is the bytes that
    load in a turn divided by `kv_bytes`. `gaining` is the part of the turns that gain.
    """
    return gaining * log((1 + x) / (p + (1 - p) * (1 + x))) - x / ratio


def rest_enough(
    way_back_s: float, longest_s: float, most_s: float, *, pays_after_s: float | None = None
) -> float:
    """Return the seconds without work after which a model lends all it may, under spatial sharing.

    `way_back_s`: seconds to load all lent layers again, 0 while unknown; `longest_s`: seconds of
    the longest recent pause that ended with more work; `most_s`: upper limit of the result;
    `pays_after_s`: seconds after which lending has paid (`pays_after`), None while no model waits
    for memory.

    The result is twice `longest_s`, because a pause that has lasted so long is likely to go on. If
    another model waits, it is `way_back_s` at least and `pays_after_s` at most. Otherwise it is at
    least so long that the way back takes the part `WAY_BACK_PART` of it at most. While `way_back_s`
    is unknown, it is `most_s`.
    """
    if way_back_s <= 0:
        return most_s
    if pays_after_s is not None:
        return min(most_s, pays_after_s, max(way_back_s, 2 * longest_s))
    return min(most_s, max(way_back_s / WAY_BACK_PART, 2 * longest_s))


@lru_cache(maxsize=64)
def pays_after(lent: float, part: float, way_back_s: float, anew_s: float) -> float:
    """Return the seconds of lending after which it has paid: `way_back_s`, and the seconds in which
    its gain makes up for what is computed anew if everything lent is called in; inf if lending
    gains nothing.

    `lent`: lent bytes divided by the bytes of KV memory with all layers in place; `part`: the part
    of a step's time that does not grow with the batch, 0 to 1, in the models that wait for memory;
    `way_back_s`: seconds to load the lent layers again; `anew_s`: seconds in which requests would
    compute KV of all lent bytes anew. They get no tokens meanwhile.
    """
    gain = _gain(lent, min(part, MOST_PART), inf)
    return way_back_s + CALLED_IN * anew_s / gain if gain > 0 else inf
