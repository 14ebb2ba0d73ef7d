"""Frequency at which steps route to each expert of each layer, as observed. Pure.

A layer's experts are called once a step, for all tokens of the step together. The share of calls
that route to an expert at all is what counts, not the number of tokens: each such call needs the
expert's parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

WINDOW = 128
"""Calls after which an observation counts 1/e of a new one."""
OBSERVE_CALLS = 32
"""Steps between two looks at how often experts are routed to."""
_RESCALE = 1e100


class RoutingCounts:
    """Decayed counts for `layers`, of which each has `count` experts."""

    def __init__(self, layers: Iterable[int], count: int, window: int = WINDOW) -> None:
        self.layers, self.count = tuple(layers), count
        self._growth = 1 + 1 / window
        # Instead of letting all counts of a layer decay at each call, a new call weighs more.
        self._scores = {layer: [0.0] * count for layer in self.layers}
        self._weight = dict.fromkeys(self.layers, 1.0)
        self._total = dict.fromkeys(self.layers, 0.0)
        self.calls = 0
        """Calls of the first layer, which is the number of steps."""

    def seen(self, layer: int, experts: Iterable[int]) -> None:
        """One call of a layer's experts routed to these, each named once."""
        self.calls += layer == self.layers[0]
        weight = self._weight[layer] * self._growth
        scores = self._scores[layer]
        for expert in experts:
            scores[expert] += weight
        self._weight[layer] = weight
        self._total[layer] += weight
        if weight > _RESCALE:
            self._scores[layer] = [score / weight for score in scores]
            self._total[layer] /= weight
            self._weight[layer] = 1.0

    def share(self, layer: int, expert: int) -> float:
        """The part of a layer's calls that route to an expert, 0 to 1; 0 before the first."""
        total = self._total[layer]
        return self._scores[layer][expert] / total if total else 0.0

    def coldest_first(self, layer: int) -> list[int]:
        """All experts of a layer; of equals the last one first."""
        return sorted(range(self.count), key=lambda e: (self.share(layer, e), -e))

    def routed(self) -> list[float]:
        """At index g: how many of each layer's g coldest experts a step routes to, over all layers.

        Each would be loaded if it were not in device memory. `count` + 1 numbers, never falling.
        """
        sums = [0.0] * (self.count + 1)
        for layer in self.layers:
            shares = sorted(self.share(layer, e) for e in range(self.count))
            total = 0.0
            for away, share in enumerate(shares, start=1):
                total += share
                sums[away] += total
        return sums


def keep_cold(cold: Collection[int], coldest_first: Sequence[int], wanted: int) -> set[int]:
    """A layer's cold experts when they are to be `wanted` many.

    Those that are cold stay so, whatever their order: `Residency` swaps them when they are used.
    """
    stay = [expert for expert in coldest_first if expert in cold]
    others = [expert for expert in coldest_first if expert not in cold]
    return {*(stay + others)[:wanted]}
