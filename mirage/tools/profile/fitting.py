"""Figures of a hardware profile from measured steps and copies, by least squares. Pure.

The simulator's roofline is linear in a step's work as long as the same bound holds. Which bound
that is follows from the figures, so both are computed in turn until neither changes, at most
`ROUNDS` times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirage.profiles import Model

Floats = npt.NDArray[np.float64]
ROUNDS = 100
LEAST = 1e-20
"""Divisor in place of a time of zero."""


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step, with the quantities that a profile's figures multiply."""

    sequences: int
    traffic: int
    """Bytes of parameters and KV that the step reads and writes."""
    arithmetic: int
    """Floating-point operations of the step."""
    seconds: float


@dataclass(frozen=True)
class Fitted:
    """Fitted figures in seconds, and in bytes and operations a second; `error` is the mean of |fit
    / measured - 1|.
    """

    overhead_s: float
    sequence_s: float
    bytes_per_s: float
    flop_per_s: float
    error: float


@dataclass(frozen=True)
class Line:
    """A line: fixed seconds, and seconds for each unit of size."""

    fixed_s: float
    each_s: float

    def at(self, size: float) -> float:
        """Seconds for `size`, which is in the unit of the points that the line was fitted to."""
        return self.fixed_s + self.each_s * size


def step(model: Model, sample: Mapping[str, Any], clock: str = "cpu_s") -> MeasuredStep:
    """The step in a sample of `mirage.engine.steptimes`, with its work counted as by
    `mirage.simulate.roofline`; `clock` is the sample's time that counts, `cpu_s` or `wall_s`."""
    sequences, context = sample["sequences"], sample["context"]
    prefill, area = sample["prefill"], sample["area"]
    weights = (model.layers * model.layer_weights + model.head_weights) * model.weight_bytes
    layers = model.layers * model.active_layer_weights
    attention = 4 * model.layers * model.attention_width
    each = 2 * (layers + model.head_weights) + attention
    arithmetic = each * sequences + attention * context + 2 * layers * prefill
    return MeasuredStep(
        sequences=sequences,
        traffic=weights + model.kv_token_bytes * (sequences + context + prefill),
        arithmetic=arithmetic + attention * area // 2,
        seconds=sample[clock],
    )


def fit(steps: Sequence[MeasuredStep]) -> Fitted:
    """Figures of the roofline that is nearest to all steps, in relative terms."""
    traffic = np.array([s.traffic for s in steps], dtype=np.float64)
    arithmetic = np.array([s.arithmetic for s in steps], dtype=np.float64)
    sequences = np.array([s.sequences for s in steps], dtype=np.float64)
    seconds = np.array([s.seconds for s in steps])
    computing = sequences == 0
    for _ in range(ROUNDS):
        columns = np.stack(
            [
                np.ones_like(seconds),
                sequences,
                np.where(computing, 0, traffic),
                np.where(computing, arithmetic, 0),
            ],
            axis=1,
        )
        found = least_squares(columns / seconds[:, None])
        bound = arithmetic * found[3] > traffic * found[2]
        if (bound == computing).all():
            break
        computing = bound
    times = found[0] + found[1] * sequences + np.maximum(traffic * found[2], arithmetic * found[3])
    error = float(np.abs(times / seconds - 1).mean())
    return Fitted(found[0], found[1], 1 / max(found[2], LEAST), 1 / max(found[3], LEAST), error)


def predicted_s(fitted: Fitted, of: MeasuredStep) -> float:
    """Seconds that the `fitted` parameters predict for a measured step."""
    bound = max(of.traffic / fitted.bytes_per_s, of.arithmetic / fitted.flop_per_s)
    return fitted.overhead_s + fitted.sequence_s * of.sequences + bound


def line(points: Sequence[tuple[float, float]]) -> Line:
    """The line nearest to points of (size, seconds), in relative terms."""
    sizes, seconds = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    columns = np.stack([np.ones_like(seconds), sizes], axis=1)
    fixed, each = least_squares(columns / seconds[:, None])
    return Line(fixed, max(each, LEAST))


def least_squares(columns: Floats) -> list[float]:
    """Non-negative factors of the columns with which the sums of the rows are nearest to one."""
    used = list(range(columns.shape[1]))
    while True:
        found = np.linalg.lstsq(columns[:, used], np.ones(len(columns)), rcond=None)[0]
        if (found >= 0).all():
            break
        used.pop(int(found.argmin()))
    factors = [0.0] * columns.shape[1]
    for column, value in zip(used, found, strict=True):
        factors[column] = float(value)
    return factors
