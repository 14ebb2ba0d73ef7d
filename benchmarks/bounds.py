"""Bounds of sets of streamed layers: the least time of a step, and the least gap."""

from __future__ import annotations

from collections.abc import Iterable

from mirage.streaming.layer_sets import gaps


def step_bound(remapped: int, slots: int, n: int, t_load: float, t_compute: float) -> float:
    """The least time that one step of `n` layers can take, `remapped` of which are given away, in
    the unit of `t_load` and `t_compute`, which are per layer.

    It is the time to compute all layers, or that of the loads that the step waits for, whichever is
    longer. There are `slots` more streamed layers than layers given away. With one slot a layer can
    be loaded only while resident layers run, so each streamed layer takes T_T + T_c. With two slots
    loads follow each other without a pause.
    """
    if remapped == 0:
        return n * t_compute
    per_layer = t_load + t_compute if slots == 1 else t_load
    return max(n * t_compute, (remapped + slots) * per_layer)


def smallest_gap(layers: Iterable[int], n: int) -> int:
    """Return the least distance between two of `layers` on the circle; n for one layer or none."""
    return min(gaps(layers, n), default=n)
