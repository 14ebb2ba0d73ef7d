"""How long one step takes: a roofline, in whole picoseconds.

A step is bound by memory traffic, by arithmetic, or by the layers that are streamed to it. Each
bound is a `Form`, linear in what the step does, with whole coefficients; the step takes the
largest. While a batch decodes undisturbed its context grows by the same number of tokens each
step, so each form grows by the same amount, and any number of steps can be added up exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mirage.simulate.profiles import Hardware, Model

PS = 10**12
"""Picoseconds in a second: the unit of simulated time. A year fits into 64 bits."""


class Work(NamedTuple):
    """What one step does, in tokens."""

    sequences: int
    """That decode one token each."""
    context: int
    """Tokens in the KV cache of those."""
    prefill: int = 0
    """Prompt tokens computed."""
    area: int = 0
    """Twice the sum over those tokens of the tokens they attend to."""


class Form(NamedTuple):
    """Picoseconds of one bound: fixed, per sequence, per context and prefill token, per area."""

    fixed: int
    sequence: int
    context: int
    prefill: int
    area: int

    def at(self, work: Work) -> int:
        """Picoseconds that this bound demands of a step."""
        return (
            self.fixed
            + self.sequence * work.sequences
            + self.context * work.context
            + self.prefill * work.prefill
            + self.area * work.area
        )


@dataclass(frozen=True)
class Streaming:
    """What of the parameters a step streams. `load_ps` is T_T."""

    alpha: int = 0
    beta: int = 1
    load_ps: int = 0


class Roofline:
    """Step times of one model on `fraction` of one device.

    Hashable by identity; forms are made once for each way of streaming and each number of
    engines that compute at the same time.
    """

    def __init__(
        self, model: Model, hardware: Hardware, fraction: float = 1.0, parts: int = 1
    ) -> None:
        self.layers = model.layers * parts
        self.overhead_ps = round(hardware.step_overhead_ms.value * 1e-3 * PS)
        self._sequence_ps = round(hardware.sequence_overhead_us.value * 1e-6 * PS)
        self._compute = self._bounds(model, hardware, fraction)
        self.forms = lru_cache(maxsize=4096)(self._forms)

    def compute_ps(self, work: Work, crowd: int = 1) -> int:
        """A step that streams nothing: n T_c. `crowd` engines share the device.

        Its overhead is inside: copies go on while the host prepares the next step.
        """
        return max(form.at(work) for form in self.forms(Streaming(), crowd))

    def _forms(self, streaming: Streaming, crowd: int) -> tuple[Form, ...]:
        """All bounds of a step, its overhead included."""
        overhead = Form(self.overhead_ps, self._sequence_ps, 0, 0, 0)
        forms = [_plus(_times(form, crowd, 1), overhead) for form in self._compute]
        if streaming.alpha:
            forms += self._streamed(forms, streaming)
        return tuple(forms)

    def _streamed(self, forms: list[Form], s: Streaming) -> list[Form]:
        """`layers.step_bound`: transfers back to back, or each followed by its layer's run."""
        m = s.alpha + s.beta
        loads = Form(m * s.load_ps, 0, 0, 0, 0)
        if s.beta > 1:
            return [loads]
        return [_plus(_times(form, m, self.layers), loads) for form in forms]

    def _bounds(self, model: Model, hardware: Hardware, fraction: float) -> list[Form]:
        byte = PS / (hardware.bytes_per_s * fraction)
        flop = PS / (hardware.flop_per_s * fraction)
        kv = model.kv_token_bytes * byte
        layers = model.layers * model.active_layer_weights
        attention = 4 * model.layers * model.attention_width
        weights = model.layers * model.layer_weights + model.head_weights
        traffic = (weights * model.weight_bytes * byte, kv, kv, kv, 0)
        per_sequence = (2 * (layers + model.head_weights) + attention) * flop
        arithmetic = (0, per_sequence, attention * flop, 2 * layers * flop, attention / 2 * flop)
        return [Form(*map(round, traffic)), Form(*map(round, arithmetic))]


def _plus(one: Form, other: Form) -> Form:
    return Form(*(a + b for a, b in zip(one, other, strict=True)))


def _times(form: Form, by: int, over: int) -> Form:
    return Form(*(value * by // over for value in form))
