"""Experts of a model that can be given away, and the hook around vLLM's call of them.

vLLM routes first and then calls a layer's experts with the ids that were chosen (`topk_ids`), and
its kernels touch no other expert's weights. So a missing expert can be put in place in between;
with graphs or compiled steps only if their caller is known (`expert_call`). Only weights as vLLM
loads them can be given away, with whole pages for each expert, because kernels do not take strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mirage.engine.expert_call import captured, runner_of
from mirage.facts import ExpertFacts
from mirage.streaming.expert_layout import ExpertLayout, Piece
from mirage.streaming.experts import ExpertStreamer

WEIGHTS = ("w13_weight", "w2_weight")
UNQUANTISED = "UnquantizedFusedMoEMethod"
UNKNOWN_CALL = (
    "graphs and compiled steps cannot stop where its layers call them: with device.graphs and "
    "device.compile false they can go"
)


class ExpertsStay(Exception):
    """Error: a model's experts cannot be given away; the message says why."""


@dataclass(frozen=True)
class ExpertLayer:
    """Experts of one decoder layer: their weights, and how vLLM calls them."""

    index: int
    weights: list[torch.Tensor]
    """Tensors of the experts' weights, (experts, ...) each."""
    kernel: Any
    """Kernel that vLLM calls with the ids; None before the model has weights, or if MIRAGE does not
    know it."""
    runner: Any = None
    """Runner that routes and calls the experts; None if it is not vLLM's usual one."""


def find(layers: Sequence[torch.nn.Module], *, called: bool = False) -> list[ExpertLayer]:
    """Return the experts of all layers that have experts.

    Raise `ExpertsStay` if fewer than two layers have experts, a layer has several groups of them,
    or they are of an unknown kind. With `called`, raise it also if a layer calls them in an unknown
    way, since a graph has to end at the call.
    """
    found = []
    for index, layer in enumerate(layers):
        modules = [m for m in layer.modules() if hasattr(m, WEIGHTS[0]) and hasattr(m, WEIGHTS[1])]
        if len(modules) > 1:
            raise ExpertsStay(f"layer {index} has several groups of experts")
        if modules:
            found.append(_experts(index, modules[0], runner_of(layer, modules[0])))
    if not found:
        raise ExpertsStay("it has none")
    if called and any(one.runner is None for one in found):
        raise ExpertsStay(UNKNOWN_CALL)
    if len(found) == 1:
        raise ExpertsStay("one layer alone has some, so that nothing would be gained")
    return found


def layout(found: Sequence[ExpertLayer], page_bytes: int) -> ExpertLayout:
    """Return the layout of experts, with each layer's expert weights first in its range.

    Raise `ExpertsStay` if an expert does not fill whole pages, layers differ, or the kernel that
    computes them is unknown.
    """
    shapes = {tuple((tuple(w.shape), w.dtype) for w in one.weights) for one in found}
    if len(shapes) > 1:
        raise ExpertsStay("its layers' experts differ in size")
    if any(one.kernel is None for one in found):
        raise ExpertsStay("the kernel that computes them is not known to MIRAGE")
    known = facts(found)
    if (why := known.stay(page_bytes)) is not None:
        raise ExpertsStay(why)
    start, pieces = 0, []
    for nbytes in known.slices:
        pieces.append(Piece(start, nbytes))
        start += nbytes * known.count
    return ExpertLayout(tuple(one.index for one in found), known.count, tuple(pieces))


def facts(found: Sequence[ExpertLayer]) -> ExpertFacts:
    """Return the number and size of experts, as they are in the first layer that has experts."""
    weights = found[0].weights
    slices = tuple(weight[0].numel() * weight.element_size() for weight in weights)
    return ExpertFacts(len(found), len(weights[0]), slices)


def hook(found: Sequence[ExpertLayer], streamer: ExpertStreamer) -> None:
    """Replace the `apply` of each layer's kernel by one that first lets the streamer load the
    missing experts that the step routes to."""
    for one in found:
        one.kernel.apply = _routed(one.kernel.apply, streamer, one.index)


def _experts(index: int, module: Any, runner: Any) -> ExpertLayer:
    method: Any = getattr(module, "quant_method", None)
    kernel = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)
    if type(method).__name__ != UNQUANTISED or (kernel is not None and method.is_monolithic):
        raise ExpertsStay(f"those of layer {index} are computed by {type(method).__name__}")
    if getattr(kernel, "_use_zentorch", False):
        raise ExpertsStay("zentorch computes them, of which it is not known what it touches")
    if module.expert_map is not None:
        raise ExpertsStay("each process has some of them only")
    weights = [getattr(module, name) for name in WEIGHTS]
    if not all(_whole(weight) for weight in weights):
        raise ExpertsStay(f"the weights of layer {index} are not one tensor of one storage")
    return ExpertLayer(index, weights, kernel, runner)


def _whole(weight: torch.Tensor) -> bool:
    nbytes = weight.numel() * weight.element_size()
    return weight.is_contiguous() and weight.untyped_storage().nbytes() == nbytes


def _routed(apply: Callable[..., Any], streamer: ExpertStreamer, index: int) -> Callable[..., Any]:
    """Return a function that waits until the experts named in its arguments are on the device, and
    then calls `apply` with these arguments."""

    def applied(*args: Any, **kwargs: Any) -> Any:
        ids = kwargs["topk_ids"] if "topk_ids" in kwargs else args[5]
        # Ids that are on a device are waited for here, as whoever acts on them must.
        if not captured(ids.device) and (streamer.looks or ids.device.type == "cpu"):
            streamer.routed(index, [e for e in ids.unique().tolist() if e >= 0])
        return apply(*args, **kwargs)

    return applied
