"""Time of a decode step of a mixture whose experts are partly on a peer or in host memory. Pure.

It follows Harvest, section 4. In every layer the router says which experts the batch's tokens need.
While the missing ones come over the link, one after the other, those on the device compute; the
last one computes when it has come. Numbers of experts are expected values, so nothing is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import fsum

from mirage.profiles import Hardware, Model
from mirage.simulate.hierarchy import Speed
from mirage.simulate.roofline import PS

SKEW = 0.7
"""Exponent of the routing's Zipf law. Stated assumption: no document gives one; 0 is even."""


@dataclass(frozen=True)
class Mixture:
    """A mixture on a machine, for a `batch` of tokens in each step."""

    model: Model
    hardware: Hardware
    batch: int
    skew: float = SKEW

    def step_s(self, away: int, link: Speed) -> float:
        """Seconds of a decode step in which the `away` least popular experts of each layer come
        over `link` if needed.
        """
        experts = range(self.model.experts)
        missing = sum(self.needed(number) for number in experts[len(experts) - away :])
        computed = self._attention_s + sum(map(self._expert_s, experts))
        if not away:
            return self.model.layers * computed
        come = link.latency_ps / PS + missing * self.expert_bytes / link.bytes_per_s
        return self.model.layers * max(computed, come + self._expert_s(len(experts) - 1))

    def needed(self, number: int) -> float:
        """Probability that at least one token of the batch needs the expert `number`; 0 is the
        most popular.
        """
        return 1 - (1 - self._chosen(number)) ** self.batch

    @property
    def expert_bytes(self) -> int:
        model = self.model
        return model.ffn_matrices * model.hidden * model.ffn * model.weight_bytes

    @property
    def _attention_s(self) -> float:
        """Seconds in a layer of all parts except experts."""
        model = self.model
        weights = model.layer_weights * model.weight_bytes - model.experts * self.expert_bytes
        return self._compute_s(weights, self.batch)

    def _expert_s(self, number: int) -> float:
        tokens = self.batch * self._chosen(number)
        return self._compute_s(self.needed(number) * self.expert_bytes, tokens)

    def _compute_s(self, nbytes: float, tokens: float) -> float:
        """Seconds of compute of `tokens` tokens with `nbytes` of weights, bound by reading these or
        by arithmetic.
        """
        read = nbytes / self.hardware.bytes_per_s
        flops = 2 * tokens * nbytes / self.model.weight_bytes
        return max(read, flops / self.hardware.flop_per_s)

    def _chosen(self, number: int) -> float:
        """Probability that a single token needs the expert `number`."""
        share: float = (number + 1) ** -self.skew / _whole(self.model.experts, self.skew)
        return min(1.0, self.model.active_experts * share)


@cache
def _whole(experts: int, skew: float) -> float:
    return fsum((number + 1) ** -skew for number in range(experts))
