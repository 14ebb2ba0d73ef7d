"""Time of one step by a roofline model, in whole picoseconds.

A step is bound by memory traffic, by arithmetic, or by the layers that are streamed to it, which
may give several bounds. Each is a `CostBound`, linear in the step's work, with whole coefficients;
the step takes the largest. While a batch decodes undisturbed its context grows by the same number
of tokens each step, so each bound grows by the same amount, and any number of steps can be added up
exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

import msgspec

from mirage.control.step_times import step_cost_bounds
from mirage.profiles import Hardware, Model
from mirage.streaming.layer_sets import even, nested

PS = 10**12
"""Picoseconds in a second: the unit of simulated time."""
NEVER = 1 << 62
"""A time in picoseconds that no simulation reaches."""


class Work(msgspec.Struct, frozen=True):
    """Work of one step, in tokens."""

    sequences: int
    """Sequences that decode one token each."""
    context: int
    """Tokens in the KV cache of these sequences."""
    prefill: int = 0
    """Tokens of prompts that the step computes."""
    area: int = 0
    """Twice the sum, over these prompt tokens, of the number of tokens that each attends to."""


class CostBound(NamedTuple):
    """Coefficients of one bound of a step, in picoseconds: `fixed`, and one for each unit of the
    fields of `Work`.
    """

    fixed: int
    sequence: int
    context: int
    prefill: int
    area: int

    def at(self, work: Work) -> int:
        """Picoseconds of a step with this work by this bound."""
        fixed, sequence, context, prefill, area = self
        return (
            fixed
            + sequence * work.sequences
            + context * work.context
            + prefill * work.prefill
            + area * work.area
        )


Sets = Callable[[int, int], Iterable[int]]
"""Function that chooses the m layers of n that are streamed."""
LAYER_SETS: dict[str, Sets] = {"nested": lambda n, m: nested(n)[:m], "even": even}


@cache
def _pipeline(sets: Sets, n: int, m: int, slots: int) -> tuple[tuple[Fraction, Fraction], ...]:
    return step_cost_bounds(sets(n, m), n, slots)


class Streaming(NamedTuple):
    """Layers given away (`layers_remapped`), slots, and T_T in picoseconds. A step streams as many
    layers as are given away, and one more for each slot; none if none is given away."""

    layers_remapped: int = 0
    stream_slots: int = 1
    load_ps: int = 0


NOTHING_STREAMED = Streaming()


class BoundedSteps:
    """Step times of an engine of so many `layers`, by the bounds of its computation.

    The `overhead` of a step does not depend on other engines. `sets` chooses the streamed layers;
    None takes them as evenly spaced (see docs/simulation.md). Hashable by identity; bounds are
    computed once for each way of streaming and each number of engines that compute at the same
    time.
    """

    def __init__(
        self,
        layers: int,
        compute: Iterable[CostBound],
        overhead: CostBound,
        sets: Sets | None = None,
    ) -> None:
        self.layers, self.compute, self.overhead = layers, tuple(compute), overhead
        self._sets = sets
        self.bounds = lru_cache(maxsize=4096)(self._bounds)

    @property
    def overhead_ps(self) -> int:
        """Picoseconds that the host adds to every step, without those that it adds for each
        sequence.
        """
        return self.overhead.fixed

    def compute_ps(self, work: Work, co_runners: int = 1) -> int:
        """Picoseconds of a step that streams nothing (n T_c), while `co_runners` engines share the
        device.

        The overhead is included: copies go on while the host prepares the next step.
        """
        return max([bound.at(work) for bound in self.bounds(NOTHING_STREAMED, co_runners)])

    def added_ps(self, first: int, tokens: int) -> int:
        """Picoseconds by which `tokens` tokens of a prompt, from number `first` on, lengthen a step
        at most: memory traffic or arithmetic, whichever takes longer.
        """
        work = Work(0, 0, tokens, tokens * (2 * first + tokens + 1))
        return max([bound.at(work) - bound.fixed for bound in self.bounds(NOTHING_STREAMED, 1)])

    def _bounds(self, streaming: Streaming, co_runners: int) -> tuple[CostBound, ...]:
        """All bounds of a step. Those of computation include its overhead."""
        bounds = [plus(_times(bound, co_runners, 1), self.overhead) for bound in self.compute]
        if streaming.layers_remapped:
            bounds += self._streamed(bounds, streaming)
        return tuple(bounds)

    def _streamed(self, bounds: list[CostBound], s: Streaming) -> list[CostBound]:
        """Bounds that follow from the streamed layers, evenly spaced or as `sets` chooses them."""
        n, m = self.layers, s.layers_remapped + s.stream_slots
        pairs: tuple[tuple[Fraction, Fraction], ...]
        if self._sets is None:
            pairs = ((Fraction(m), Fraction(m if s.stream_slots == 1 else 0)),)
        else:
            pairs = _pipeline(self._sets, n, m, s.stream_slots)
        made = []
        for loads, computes in pairs:
            waited = CostBound(round(loads * s.load_ps), 0, 0, 0, 0)
            if not computes:
                made.append(waited)
            elif loads:
                by, over = computes.numerator, n * computes.denominator
                made += [plus(_times(bound, by, over), waited) for bound in bounds]
        return made


class Roofline(BoundedSteps):
    """Step times of one model on `fraction` of one device. `parts` of a layer move independently;
    `sets` chooses the streamed layers, None takes them as evenly spaced."""

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        fraction: float = 1.0,
        parts: int = 1,
        sets: Sets | None = None,
    ) -> None:
        overhead_ps = round(hardware.step_overhead_ms.value * 1e-3 * PS)
        sequence_ps = round(hardware.sequence_overhead_us.value * 1e-6 * PS)
        overhead = CostBound(overhead_ps, sequence_ps, 0, 0, 0)
        compute = _compute_bounds(model, hardware, fraction)
        super().__init__(model.layers * parts, compute, overhead, sets)


def _compute_bounds(model: Model, hardware: Hardware, fraction: float) -> list[CostBound]:
    byte = PS / (hardware.bytes_per_s * fraction)
    flop = PS / (hardware.flop_per_s * fraction)
    kv = model.kv_token_bytes * byte
    layers = model.layers * model.active_layer_weights
    attention = 4 * model.layers * model.attention_width
    weights = model.layers * model.layer_weights + model.head_weights
    traffic = (weights * model.weight_bytes * byte, kv, kv, kv, 0)
    per_sequence = (2 * (layers + model.head_weights) + attention) * flop
    arithmetic = (0, per_sequence, attention * flop, 2 * layers * flop, attention / 2 * flop)
    return [CostBound(*map(round, traffic)), CostBound(*map(round, arithmetic))]


def plus(one: CostBound, other: CostBound) -> CostBound:
    """Sum of two bounds, for work that is done one after the other."""
    return CostBound(*(a + b for a, b in zip(one, other, strict=True)))


def _times(bound: CostBound, by: int, over: int) -> CostBound:
    return CostBound(*(value * by // over for value in bound))
