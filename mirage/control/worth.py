"""What each way of getting a byte of KV memory costs, in seconds: the plan's one comparison. Pure.

Every `Price` says how many seconds of serving are lost while the memory is used for `span_s`
seconds (a turn, or until who lent it wakes), and how many bytes that brings. Prices are compared
by seconds per byte, so that ways of different sizes can be. Times are those that engines measure:
T_T, the time to load one layer, and T_c, the compute time of one layer in one step.

A layer is streamed in every step; what is spilled crosses the link once down and once up.
So layers are cheapest as long as their loads hide (MIRAGE, arXiv 2507.11507: T_T * N is at most
the compute time of a step), and the dearest of all where they do not and the span is long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

from mirage.control.step_times import nested_step


class Way(StrEnum):
    """Where a byte of KV memory comes from; of equal prices the first one is taken."""

    UNUSED = "unused KV of others"
    IDLE_LAYERS = "layers of an idle model"
    EXPERTS = "cold experts"
    LAYERS = "layers of an active model"
    SPILL = "KV of suspended requests, to the tier below"
    DROP = "KV of suspended requests, computed anew"


class Price(NamedTuple):
    """`seconds` of serving are lost for `nbytes` of memory."""

    way: Way
    seconds: float
    nbytes: float

    @property
    def per_byte(self) -> float:
        """Seconds a byte; infinite for what brings none."""
        return self.seconds / self.nbytes if self.nbytes > 0 else inf


class Layers(NamedTuple):
    """A model as the link sees it: `n` layers of `layer_bytes`, T_T and T_c in seconds."""

    n: int
    layer_bytes: int
    load_s: float
    compute_s: float

    @property
    def link_bytes_s(self) -> float:
        """The link's speed as the loads of layers show it; 0 while unknown."""
        return self.layer_bytes / self.load_s if self.load_s > 0 else 0.0

    def step_s(self, alpha: int) -> float:
        """A decode step with `alpha` layers given away, by the number of slots that is best."""
        betas = [beta for beta in (1, 2) if alpha + beta <= self.n]
        if alpha == 0 or not betas:
            return self.n * self.compute_s
        return min(nested_step(alpha, b, self.n, self.load_s, self.compute_s) for b in betas)


def unused(nbytes: float, *, cached_bytes: float, again: float, compute_bytes_s: float) -> Price:
    """Lending KV memory that no request uses: free, but for the prefixes that are cached there.

    `cached_bytes` of them are nowhere else, are asked for with probability `again` while they
    are gone, and then computed at `compute_bytes_s`.
    """
    return Price(Way.UNUSED, again * _over(cached_bytes, compute_bytes_s), nbytes)


def idle_layers(model: Layers, alpha: int) -> Price:
    """Layers of a model that does not run: nothing goes down, each is loaded once, at its wake."""
    return Price(Way.IDLE_LAYERS, alpha * model.load_s, alpha * model.layer_bytes)


def active_layers(model: Layers, before: int, alpha: int, span_s: float) -> Price:
    """`alpha` layers given away instead of `before`, by a model that decodes all the while.

    What hides costs nothing. Else each step is longer, and of `span_s` the part is lost by which
    it is.
    """
    lost = 1 - model.step_s(before) / model.step_s(alpha) if alpha > before else 0.0
    return Price(Way.LAYERS, max(0.0, lost) * span_s, (alpha - before) * model.layer_bytes)


def experts(nbytes: float, *, routed: float, load_s: float, steps: float) -> Price:
    """Experts of `nbytes` that a step routes to with probability `routed` (0 to 1).

    Then they are loaded in `load_s`, which no compute hides: the router has just decided.
    """
    return Price(Way.EXPERTS, routed * load_s * steps, nbytes)


COLD = 0.1
"""Part of a decode step by which loads of experts may lengthen it."""
STILL_COLD = 0.15
"""The same for those that are away already, since what is observed varies."""


def cold_experts(
    routed: Sequence[float],
    *,
    load_s: float,
    step_s: float,
    gain_bytes: int,
    kv_bytes: int,
    most: int,
    lengthening: float = COLD,
) -> int:
    """Experts of each layer that are worth giving while the model decodes, at most `most`.

    A step routes to `routed[g]` of each layer's g coldest and takes `step_s` without loads of
    `load_s` each. Memory of `gain_bytes` an expert makes a batch larger that fills `kv_bytes`: the
    number is best where tokens a second are most, (kv + g * gain) / (step + loads). 0 if unknown.
    """
    if min(load_s, step_s, gain_bytes) <= 0 or not routed:
        return 0
    best, best_rate = 0, float(max(1, kv_bytes))
    for given in range(1, min(most, len(routed) - 1) + 1):
        longer = experts(gain_bytes, routed=routed[given], load_s=load_s, steps=1).seconds / step_s
        if longer > lengthening:
            break
        rate = (max(1, kv_bytes) + given * gain_bytes) / (1 + longer)
        if rate > best_rate:
            best, best_rate = given, rate
    return best


def spill(nbytes: float, *, down_bytes_s: float, up_bytes_s: float) -> Price:
    """KV of requests that do not run goes to the tier below, and comes back for them: once each."""
    seconds = _over(nbytes, down_bytes_s) + _over(nbytes, up_bytes_s)
    return Price(Way.SPILL, seconds, nbytes)


def drop(nbytes: float, *, token_bytes: float, prefill_tokens_s: float) -> Price:
    """KV of requests that do not run is forgotten, and computed anew when they do."""
    return Price(Way.DROP, _over(nbytes, token_bytes * prefill_tokens_s), nbytes)


def ordered(prices: Iterable[Price]) -> list[Price]:
    """Cheapest a byte first; of equals in the order of `Way`. Without what brings nothing."""
    places = {way: place for place, way in enumerate(Way)}
    having = (p for p in prices if p.per_byte < inf)
    return sorted(having, key=lambda p: (p.per_byte, places[p.way]))


def cheapest(prices: Iterable[Price]) -> Price | None:
    """The first in `ordered`; None if there is none."""
    return next(iter(ordered(prices)), None)


def worth_streaming(
    model: Layers, hidden: int, most: int, span_s: float, instead: Iterable[Price] = ()
) -> int:
    """Layers up to which streaming is no dearer a byte than what could be done instead.

    From `hidden`, which cost nothing, at most `most`. `instead`: prices of any amount; without any
    all layers are worth it.
    """
    other = cheapest(instead)
    if other is None or model.load_s <= 0 or model.compute_s <= 0:
        return most
    for alpha in range(hidden + 1, most + 1):
        if active_layers(model, hidden, alpha, span_s).per_byte > other.per_byte:
            return alpha - 1
    return most


def _over(amount: float, rate: float) -> float:
    """Seconds for it; endless at no rate."""
    if amount <= 0:
        return 0.0
    return amount / rate if rate > 0 else inf
