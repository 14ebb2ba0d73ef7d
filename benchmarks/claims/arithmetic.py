"""Claims of the paper that need no simulation: ratios and closed forms."""

from __future__ import annotations

from itertools import combinations

from benchmarks.bounds import smallest_gap
from mirage import profiles
from mirage.control.hiding import hides
from mirage.control.step_times import step_time
from mirage.simulate.roofline import PS, Roofline, Work
from mirage.streaming.layer_sets import even

C2C_PEAK, PCIE5_PEAK, PCIE4_PEAK = 900.0, 128.0, 64.0
"""GB/s, both ways together: NVLink-C2C, PCIe x16 of generation 5 and 4 (data sheets)."""

TOKENS = 499
"""Tokens of a ShareGPT request, prompt and answer."""


def link_ratios() -> tuple[float, float]:
    """Peak speed of the GH200's link over those of an H100 and an A100."""
    return C2C_PEAK / PCIE5_PEAK, C2C_PEAK / PCIE4_PEAK


def mixed_loss() -> float:
    """Per cent of the GH200's one-way bandwidth lost while the other way is used too."""
    gh200 = profiles.hardware("gh200")
    return 100 * (1 - gh200.link_mixed_gb_s.value / gh200.link_gb_s.value)


def remapped_third() -> float:
    """KV space of two OPT-13b on 80 GB with a third of their parameters away, over that with none
    away.
    """
    parameters = 2 * profiles.model("opt-13b").parameter_bytes / 1e9
    space = 80 - parameters
    return (space + parameters / 3) / space


def batch_that_hides(percent: float) -> int:
    """Smallest batch of ShareGPT requests whose decode step on a GH200, without its overhead, takes
    at least as long as the load of `percent` per cent of OPT-13b's layers.
    """
    gh200, model = profiles.hardware("gh200"), profiles.model("opt-13b")
    roofline = Roofline(model, gh200)
    layer = model.layer_weights * model.weight_bytes
    load = percent / 100 * model.layers * layer / (gh200.link_gb_s.value * 1e9)
    step = 0.0
    batch = 0
    while step < load:
        batch += 1
        work = Work(batch, batch * TOKENS)
        step = (roofline.compute_ps(work) - roofline.overhead_ps) / PS
    return batch


def two_slots_from(layers: int = 40) -> int:
    """The number of layers remapped from which two slots hide where one does not.

    For each number the load time is raised until one slot no longer hides; two slots pay from
    the number on at which they still do, whatever T_T and T_c.
    """
    for remapped in range(1, layers - 2):
        one_slot = (layers - remapped - 1) / (remapped + 1)
        if hides(remapped, 2, layers, one_slot * (1 + 1e-9), 1.0):
            return remapped
    return layers


def even_is_best(layers: int = 12, streamed: int = 3) -> bool:
    """True if no set of layers has a larger smallest gap, or a shorter step, than the even one."""
    chosen = even(layers, streamed)
    sets = list(combinations(range(layers), streamed))
    widest = max(smallest_gap(one, layers) for one in sets)
    times = (2.0, 3.0, 4.0, 6.0)
    fastest = all(
        step_time(chosen, layers, 1, t, 1.0)
        <= min(step_time(one, layers, 1, t, 1.0) for one in sets) + 1e-9
        for t in times
    )
    return smallest_gap(chosen, layers) == widest and fastest
