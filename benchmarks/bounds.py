"""Lower bounds of a step with streamed layers, to compare measured times with."""

from __future__ import annotations


def step_bound(remapped: int, slots: int, n: int, t_load: float, t_compute: float) -> float:
    """The least time one step can take, in the unit of `t_load` and `t_compute`, each per layer.

    It is compute, or the transfers that it waits for. With one slot a layer can
    only be loaded while resident layers run, so the streamed ones each take T_T + T_c in
    sequence. With two slots, loads run back to back.
    """
    if remapped == 0:
        return n * t_compute
    per_layer = t_load + t_compute if slots == 1 else t_load
    return max(n * t_compute, (remapped + slots) * per_layer)
