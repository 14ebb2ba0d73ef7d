"""From measured steps to a hardware profile: the least-squares half of `crosscheck.py`.

The simulator's roofline is linear in what a step does while one bound holds. Which bound that
is follows from the figures, so both are found in turn until neither changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirage.profiles import Model

Floats = npt.NDArray[np.float64]
ROUNDS = 100
LEAST = 1e-20
"""Stands for no time at all where one must be divided by."""


@dataclass(frozen=True)
class Step:
    """A measured step, in the terms that a profile's figures multiply."""

    sequences: int
    traffic: int
    """Bytes of parameters and KV that it reads and writes."""
    arithmetic: int
    """Floating-point operations."""
    seconds: float


@dataclass(frozen=True)
class Fitted:
    """Seconds, bytes and operations a second; `error` is the mean of |fit / measured - 1|."""

    overhead_s: float
    sequence_s: float
    bytes_per_s: float
    flop_per_s: float
    error: float


def step(model: Model, sample: dict[str, Any], clock: str = "cpu_s") -> Step:
    """One of `engine_times.Sample`, counted as `mirage.simulate.roofline` counts."""
    sequences, context = sample["sequences"], sample["context"]
    prefill, area = sample["prefill"], sample["area"]
    weights = (model.layers * model.layer_weights + model.head_weights) * model.weight_bytes
    layers = model.layers * model.active_layer_weights
    attention = 4 * model.layers * model.attention_width
    each = 2 * (layers + model.head_weights) + attention
    arithmetic = each * sequences + attention * context + 2 * layers * prefill
    return Step(
        sequences=sequences,
        traffic=weights + model.kv_token_bytes * (sequences + context + prefill),
        arithmetic=arithmetic + attention * area // 2,
        seconds=sample[clock],
    )


def fit(steps: Sequence[Step]) -> Fitted:
    """The figures whose roofline is nearest to all steps, in relative terms."""
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
        found = _least_squares(columns / seconds[:, None])
        bound = arithmetic * found[3] > traffic * found[2]
        if (bound == computing).all():
            break
        computing = bound
    times = found[0] + found[1] * sequences + np.maximum(traffic * found[2], arithmetic * found[3])
    error = float(np.abs(times / seconds - 1).mean())
    return Fitted(found[0], found[1], 1 / max(found[2], LEAST), 1 / max(found[3], LEAST), error)


def _least_squares(columns: Floats) -> list[float]:
    """Non-negative factors that bring the rows' sums as near to one as can be."""
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
