"""Price of each way of getting a byte of KV memory, in seconds: the plan's one comparison. Pure.

A `Price` says how many seconds of serving are lost while the memory is used for `span_s` seconds (a
turn, or the time until the lender wakes), and how many bytes that brings. Prices are compared in
seconds per byte, so that ways of different sizes can be. Times are those that engines measure: T_T,
the time to load one layer, and T_c, the compute time of one layer in one step.

A layer is streamed in every step; spilled KV crosses the link once down and once up. So layers are
cheapest as long as their loads hide (MIRAGE, arXiv 2507.11507: T_T * N is at most the compute time
of a step), and the dearest of all where they do not and the span is long. Cold experts cost the
loads of those that a step routes to, which no compute hides.

Ways that exclude one another, as a model gives layers or experts, bring different amounts. Each is
charged for its shortfall against the largest amount, as a smaller batch (`Batches`). Then the
lowest price by the byte wins (`best`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

from mirage.control.step_times import nested_step


class KvSource(StrEnum):
    """Sources of a byte of KV memory; of equal prices the first one is taken."""

    UNUSED = "unused KV of others"
    IDLE_LAYERS = "layers of an idle model"
    LAYERS = "layers of an active model"
    EXPERTS = "cold experts of an active model"
    SPILL = "KV of suspended requests, to the tier below"
    DROP = "KV of suspended requests, computed anew"


class Price(NamedTuple):
    """`seconds` of serving are lost for `nbytes` of memory."""

    way: KvSource
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

    def step_s(self, remapped: int) -> float:
        """A decode step with so many layers given away, by the number of slots that is best."""
        slot_counts = [slots for slots in (1, 2) if remapped + slots <= self.n]
        if remapped == 0 or not slot_counts:
            return self.n * self.compute_s
        return min(
            nested_step(remapped, b, self.n, self.load_s, self.compute_s) for b in slot_counts
        )


class Mixture(NamedTuple):
    """The experts of a model that decodes. `gain_bytes` is what one of each layer brings."""

    gain_bytes: int
    routed: Sequence[float]
    """At index g: of each layer's g coldest experts, how many a step routes to, over all layers."""
    load_s: float
    """Seconds of one expert's load while the step waits."""
    compute_s: float
    """Seconds of a step without loads."""

    def step_s(self, given: int) -> float:
        """A step with `given` experts of each layer away: no compute hides their loads.

        The router has just decided.
        """
        return self.compute_s + self.routed[given] * self.load_s


def unused(nbytes: float, *, cached_bytes: float, again: float, compute_bytes_s: float) -> Price:
    """Lending KV memory that no request uses: free, but for the prefixes that are cached there.

    `cached_bytes` of them are nowhere else, are asked for with probability `again` while they
    are gone (or asked for so many times), and then there again at `compute_bytes_s`.
    """
    return Price(KvSource.UNUSED, again * _over(cached_bytes, compute_bytes_s), nbytes)


def idle_layers(model: Layers, remapped: int) -> Price:
    """Layers of a model that does not run: nothing goes down, each is loaded once, at its wake."""
    return Price(KvSource.IDLE_LAYERS, remapped * model.load_s, remapped * model.layer_bytes)


def active_layers(model: Layers, before: int, remapped: int, span_s: float) -> Price:
    """`remapped` layers given away instead of `before`, by a model that decodes all the while.

    What hides costs nothing.
    """
    seconds = (
        _slower(model.step_s(before), model.step_s(remapped), span_s) if remapped > before else 0.0
    )
    return Price(KvSource.LAYERS, seconds, (remapped - before) * model.layer_bytes)


def cold_experts(mixture: Mixture, before: int, given: int, span_s: float) -> Price:
    """`given` experts of each layer given away instead of `before`, as with `active_layers`."""
    seconds = _slower(mixture.step_s(before), mixture.step_s(given), span_s)
    return Price(KvSource.EXPERTS, seconds, (given - before) * mixture.gain_bytes)


def spill(nbytes: float, *, down_bytes_s: float, up_bytes_s: float) -> Price:
    """KV of requests that do not run goes to the tier below, and comes back for them: once each."""
    seconds = _over(nbytes, down_bytes_s) + _over(nbytes, up_bytes_s)
    return Price(KvSource.SPILL, seconds, nbytes)


def drop(nbytes: float, *, token_bytes: float, prefill_tokens_s: float) -> Price:
    """KV of requests that do not run is forgotten, and computed anew when they do."""
    return Price(KvSource.DROP, _over(nbytes, token_bytes * prefill_tokens_s), nbytes)


def ordered(prices: Iterable[Price]) -> list[Price]:
    """Cheapest a byte first; of equals in the order of `KvSource`. Without what brings nothing."""
    places = {way: place for place, way in enumerate(KvSource)}
    having = (p for p in prices if p.per_byte < inf)
    return sorted(having, key=lambda p: (p.per_byte, places[p.way]))


def cheapest(prices: Iterable[Price]) -> Price | None:
    """The first in `ordered`; None if there is none."""
    return next(iter(ordered(prices)), None)


def dearest(prices: Iterable[Price]) -> Price | None:
    """The last in `ordered`; None if there is none."""
    return next(reversed(ordered(prices)), None)


class Batches(NamedTuple):
    """Value of memory to a model that decodes: larger batches on more than `kv_bytes`."""

    kv_bytes: float
    """Bytes of KV memory, without any that is given."""
    staying: float = 1.0
    """Part of a step that does not grow with its batch, such as reading the parameters."""

    def with_smaller(self, price: Price, wanted: float, span_s: float) -> Price:
        """`price`, and the price of what it leaves of `wanted` bytes: batches stay smaller.

        A batch that is x times as large takes steps of p + (1 - p) x, p of which stay.
        """
        batch = (self.kv_bytes + price.nbytes) / (self.kv_bytes + wanted)
        served = batch / (self.staying + (1 - self.staying) * batch)
        return Price(price.way, span_s - (span_s - price.seconds) * served, wanted)


def best(ways: Sequence[Price], batches: Batches, span_s: float) -> Price | None:
    """Way that serves most in `span_s` seconds, of ways that exclude one another.

    None if none of them brings anything.
    """
    wanted = max((price.nbytes for price in ways), default=0)
    whole = [batches.with_smaller(price, wanted, span_s) for price in ways if wanted]
    first = cheapest(whole)
    return None if first is None else ways[whole.index(first)]


def worth_giving(
    price: Callable[[int, int], Price], free: int, most: int, instead: Iterable[Price]
) -> int:
    """The number up to which giving is no dearer a byte than what could be done instead.

    From `free`, which are given anyway, at most `most`. `price(before, given)` is what more of them
    cost; `instead` are prices of any amount, and without any all is worth it.
    """
    other = cheapest(instead)
    if other is None:
        return most
    for given in range(free + 1, most + 1):
        if price(free, given).per_byte > other.per_byte:
            return given - 1
    return most


def _slower(before_s: float, after_s: float, span_s: float) -> float:
    """Seconds lost of a span whose steps take `after_s` instead of `before_s`."""
    return max(0.0, 1 - before_s / after_s) * span_s if after_s > 0 else 0.0


def _over(amount: float, rate: float) -> float:
    """Seconds for it; endless at no rate."""
    if amount <= 0:
        return 0.0
    return amount / rate if rate > 0 else inf
