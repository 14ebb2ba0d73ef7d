"""Price of each source of KV memory in seconds: the plan's one comparison. Pure.

A `Price` says how many seconds of serving are lost while the memory is used for `span_s` seconds (a
turn, or the time until the lender wakes), and how many bytes that brings. Prices are compared in
seconds per byte, so that sources of different sizes can be compared. Times are those that engines
measure: T_T, the time to load one layer, and T_c, the compute time of one layer in one step.

A layer is streamed in every step; spilled KV crosses the link once down and once up. So layers are
cheapest as long as their loads hide (MIRAGE, arXiv 2507.11507: T_T * N is at most the compute time
of a step), and most expensive where they do not and the span is long. Cold experts cost the loads
of those that a step routes to, which no compute hides.

Sources that exclude one another, such as layers or experts of a model, bring different amounts.
Each is charged for its shortfall against the largest amount, as a smaller batch (`Batches`). Then
the lowest price by the byte wins (`best`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

from mirage.control.step_times import nested_step


class KvSource(StrEnum):
    """Sources of a byte of KV memory; of equal prices the first in this order is taken."""

    UNUSED = "unused KV of others"
    IDLE_LAYERS = "layers of an idle model"
    LAYERS = "layers of an active model"
    EXPERTS = "cold experts of an active model"
    SPILL = "KV of suspended requests, to the tier below"
    DROP = "KV of suspended requests, computed anew"


class Price(NamedTuple):
    """Cost of a source of memory: `seconds` of serving are lost for `nbytes` bytes."""

    way: KvSource
    seconds: float
    nbytes: float

    @property
    def per_byte(self) -> float:
        """Seconds lost for each byte; infinite if it brings no byte."""
        return self.seconds / self.nbytes if self.nbytes > 0 else inf


class Layers(NamedTuple):
    """All `n` layers of a model, `layer_bytes` each; `load_s` is T_T and `compute_s` is T_c."""

    n: int
    layer_bytes: int
    load_s: float
    compute_s: float

    @property
    def link_bytes_s(self) -> float:
        """Speed of the link in bytes a second, by the loads of layers; 0 while unknown."""
        return self.layer_bytes / self.load_s if self.load_s > 0 else 0.0

    def step_s(self, remapped: int) -> float:
        """Return the seconds of a decode step with `remapped` layers given away and the better
        number of slots."""
        slot_counts = [slots for slots in (1, 2) if remapped + slots <= self.n]
        if remapped == 0 or not slot_counts:
            return self.n * self.compute_s
        return min(
            nested_step(remapped, b, self.n, self.load_s, self.compute_s) for b in slot_counts
        )


class Mixture(NamedTuple):
    """Sizes and times of the experts of a mixture while it decodes. `gain_bytes` are the bytes that
    become KV memory when one expert of each layer is given away."""

    gain_bytes: int
    routed: Sequence[float]
    """At index g: number of experts that a step routes to among the g coldest of each layer, summed
    over all layers."""
    load_s: float
    """Seconds to load one expert while the step waits."""
    compute_s: float
    """Seconds of a step without loads of experts."""

    def step_s(self, given: int) -> float:
        """Return the seconds of a step with `given` experts of each layer away.

        No compute hides their loads, because the router has just decided which experts are needed.
        """
        return self.compute_s + self.routed[given] * self.load_s


def unused(nbytes: float, *, cached_bytes: float, again: float, compute_bytes_s: float) -> Price:
    """Return the price of lending KV memory that no request uses: only cached prefixes in it cost
    time.

    `cached_bytes` of prefixes are stored nowhere else. They are requested `again` times, or with
    that probability, while they are gone, and are then computed anew at `compute_bytes_s` bytes a
    second.
    """
    return Price(KvSource.UNUSED, again * _over(cached_bytes, compute_bytes_s), nbytes)


def idle_layers(model: Layers, remapped: int) -> Price:
    """Return the price of layers of a model that does not run: each is loaded once, when it
    wakes."""
    return Price(KvSource.IDLE_LAYERS, remapped * model.load_s, remapped * model.layer_bytes)


def active_layers(model: Layers, before: int, remapped: int, span_s: float) -> Price:
    """Return the price of giving `remapped` layers away instead of `before`, which brings the
    memory of the difference, for a model that decodes for `span_s` seconds.

    Layers that hide cost nothing.
    """
    seconds = (
        _slower(model.step_s(before), model.step_s(remapped), span_s) if remapped > before else 0.0
    )
    return Price(KvSource.LAYERS, seconds, (remapped - before) * model.layer_bytes)


def cold_experts(mixture: Mixture, before: int, given: int, span_s: float) -> Price:
    """Return the price of `given` experts of each layer given away instead of `before`, as
    `active_layers` does."""
    seconds = _slower(mixture.step_s(before), mixture.step_s(given), span_s)
    return Price(KvSource.EXPERTS, seconds, (given - before) * mixture.gain_bytes)


def spill(nbytes: float, *, down_bytes_s: float, up_bytes_s: float) -> Price:
    """Return the price of copying KV of suspended requests to the tier below the device and back,
    once each."""
    seconds = _over(nbytes, down_bytes_s) + _over(nbytes, up_bytes_s)
    return Price(KvSource.SPILL, seconds, nbytes)


def drop(nbytes: float, *, token_bytes: float, prefill_tokens_s: float) -> Price:
    """Return the price of dropping KV of suspended requests and computing it anew when they run."""
    return Price(KvSource.DROP, _over(nbytes, token_bytes * prefill_tokens_s), nbytes)


def ordered(prices: Iterable[Price]) -> list[Price]:
    """Return prices, lowest per byte first, equal ones in the order of `KvSource`, without those
    that bring no bytes or cost infinitely many seconds."""
    places = {way: place for place, way in enumerate(KvSource)}
    having = (p for p in prices if p.per_byte < inf)
    return sorted(having, key=lambda p: (p.per_byte, places[p.way]))


def cheapest(prices: Iterable[Price]) -> Price | None:
    """Return the first price in `ordered`: the lowest per byte, if it is not infinite. None if
    there is none."""
    return next(iter(ordered(prices)), None)


def dearest(prices: Iterable[Price]) -> Price | None:
    """Return the last price in `ordered`: the highest per byte that is not infinite. None if
    there is none."""
    return next(reversed(ordered(prices)), None)


class Batches(NamedTuple):
    """Value of memory to a model that decodes: more than `kv_bytes` of it means larger batches."""

    kv_bytes: float
    """Bytes of KV memory that the model has in any case, without what priced sources bring."""
    staying: float = 1.0
    """Part of a step that does not grow with its batch, such as reading the parameters."""

    def with_smaller(self, price: Price, wanted: float, span_s: float) -> Price:
        """Return `price` for `wanted` bytes, with the cost of smaller batches for those that it
        does not bring.

        A batch that is x times as large takes steps that are p + (1 - p) x times as long, where p
        is `staying`.
        """
        batch = (self.kv_bytes + price.nbytes) / (self.kv_bytes + wanted)
        served = batch / (self.staying + (1 - self.staying) * batch)
        return Price(price.way, span_s - (span_s - price.seconds) * served, wanted)


def best(ways: Sequence[Price], batches: Batches, span_s: float) -> Price | None:
    """Return the one of `ways`, which exclude one another, that serves most in `span_s` seconds.

    None if none of them brings any bytes.
    """
    wanted = max((price.nbytes for price in ways), default=0)
    whole = [batches.with_smaller(price, wanted, span_s) for price in ways if wanted]
    first = cheapest(whole)
    return None if first is None else ways[whole.index(first)]


def worth_giving(
    price: Callable[[int, int], Price], free: int, most: int, instead: Iterable[Price]
) -> int:
    """Return the largest number of units to give, at most `most`, of which those beyond `free` cost
    no more per byte, on average, than the cheapest alternative.

    The `free` units are given in any case. `price(before, given)` is the price of giving `given`
    units instead of `before`; `instead` has the prices of alternatives, of any amount. Without
    alternatives the result is `most`.
    """
    other = cheapest(instead)
    if other is None:
        return most
    for given in range(free + 1, most + 1):
        if price(free, given).per_byte > other.per_byte:
            return given - 1
    return most


def _slower(before_s: float, after_s: float, span_s: float) -> float:
    """Return the seconds lost in a span whose steps take `after_s` instead of `before_s`."""
    return max(0.0, 1 - before_s / after_s) * span_s if after_s > 0 else 0.0


def _over(amount: float, rate: float) -> float:
    """Return the seconds for an amount at a rate; infinite at rate 0."""
    if amount <= 0:
        return 0.0
    return amount / rate if rate > 0 else inf
