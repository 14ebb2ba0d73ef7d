"""Frequency with which steps route to each expert of each layer, as observed. Pure.

A layer's experts are called once a step, for all tokens of the step together. Only the part of
calls that route to an expert counts, not the number of tokens: each such call needs the expert's
parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

WINDOW = 128
"""Number of calls after which the weight of an observation has fallen to 1/e."""
OBSERVE_CALLS = 32
"""Number of observed steps between two updates of the routing that the engine reports."""
_RESCALE = 1e100


class RoutingCounts:
    """Decayed counts of calls for `layers`, each with `count` experts."""

    def __init__(self, layers: Iterable[int], count: int, window: int = WINDOW) -> None:
        self.layers, self.count = tuple(layers), count
        self._growth = 1 + 1 / window
        # Instead of letting all counts of a layer decay at each call, a new call weighs more.
        self._scores = {layer: [0.0] * count for layer in self.layers}
        self._weight = dict.fromkeys(self.layers, 1.0)
        self._total = dict.fromkeys(self.layers, 0.0)
        self.calls = 0
        """Number of counted calls of the first layer, one for each observed step."""

    def seen(self, layer: int, experts: Iterable[int]) -> None:
        """Count one call of a layer's experts that routed to these, each named once."""
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
        """Return the part of a layer's calls that route to an expert, 0 to 1; 0 before the first
        call."""
        total = self._total[layer]
        return self._scores[layer][expert] / total if total else 0.0

    def coldest_first(self, layer: int) -> list[int]:
        """Return all experts of a layer, least used first; of equals the highest number first."""
        return sorted(range(self.count), key=lambda e: (self.share(layer, e), -e))

    def routed(self) -> list[float]:
        """Return a list with, at index g, the mean number of experts among each layer's g coldest
        that one step routes to, summed over all layers.

        Each of these would be loaded if it were not in device memory. The list has `count` + 1
        numbers, which never fall.
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
    """Return a layer's cold experts when `wanted` experts shall be cold.

    Experts that are cold stay cold, whatever their order: `Residency` swaps them when they are
    used.
    """
    stay = [expert for expert in coldest_first if expert in cold]
    others = [expert for expert in coldest_first if expert not in cold]
    return {*(stay + others)[:wanted]}
