"""Captured CUDA graphs in a model whose parameters may stream.

No parameter changes its address, so a graph that was captured with all layers resident stays valid
while they are. A graph of a whole step has no place for the waits that streaming needs. A row of
graphs (PIECEWISE) has: between them are attention and the call of a layer's experts
(`expert_call`). So FULL graphs are replayed while nothing streams, no expert is away and no step
reads the routing; otherwise pieces are replayed, or no graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any

from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.compilation.monitor import set_cudagraph_capturing_enabled
from vllm.config import CUDAGraphMode

from mirage.engine.captures import end_allocation

logger = logging.getLogger("mirage.engine.graphs")

DISPATCHER, MANAGER = "cudagraph_dispatcher", "cudagraph_manager"
"""Attributes by which vLLM's first and second model runners choose a graph."""
WRAPPERS = (CUDAGraphWrapper, BreakableCUDAGraphWrapper)


def known(runner: type) -> bool:
    """True if methods of a class of model runners use an attribute at which `gate` intercepts the
    choice of a graph (`DISPATCHER`, `MANAGER`). If not, no graph is captured.

    This is asked before a runner has loaded its model, so the names in the code of its methods
    decide.
    """
    functions = (value for base in runner.__mro__ for value in vars(base).values())
    mentioned = {
        name for f in functions if isinstance(f, FunctionType) for name in f.__code__.co_names
    }
    return bool(mentioned & {MANAGER, DISPATCHER})


def gate(runner: Any, streaming: Callable[[], bool], pieces: bool) -> None:
    """Let a model runner replay graphs of whole steps only while `streaming` returns False.

    Call it after the graphs are captured. With `pieces`, the runner may replay PIECEWISE graphs, if
    there are some, while `streaming` returns True. Raise `RuntimeError` if the runner's graphs are
    not where they should be.
    """
    fitting = {CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE} if pieces else {CUDAGraphMode.NONE}
    has = _gate(runner, streaming, fitting)
    how = "in pieces" if has else "not at all"
    logger.warning("CUDA graphs are replayed whole while no parameter is away, and %s else", how)


def abandon(runner: Any) -> None:
    """Release what a model runner has captured; it replays nothing from now on."""
    set_cudagraph_capturing_enabled(False)
    pools = {one.graph_pool for kind in WRAPPERS for one in kind._all_instances}
    for wrapper in WRAPPERS:
        wrapper.clear_all_graphs()
    if (manager := getattr(runner, MANAGER, None)) is not None:
        manager.release_graphs()
        pools.add(manager.pool)
    end_allocation(runner.device, pools - {None})
    _gate(runner, lambda: True, {CUDAGraphMode.NONE})


def _gate(runner: Any, streaming: Callable[[], bool], fitting: set[CUDAGraphMode]) -> bool:
    """Allow only `fitting` modes while `streaming`; return True if there are graphs of a fitting
    mode."""
    streaming = _telling(_for_graphs(runner), streaming)
    if (manager := getattr(runner, MANAGER, None)) is not None:
        return _gate_manager(manager, streaming, fitting)
    if (dispatcher := getattr(runner, DISPATCHER, None)) is not None:
        return _gate_dispatcher(dispatcher, streaming, fitting)
    raise RuntimeError("vLLM's CUDA graphs are not where they were: set device.graphs to false")


def _for_graphs(runner: Any) -> list[Any]:
    """Return the builders of attention metadata that keep data for each size of a whole step's
    graph.

    FlashInfer's have a wrapper with workspaces for each number of requests in a step that only
    decodes, however the step runs. Whole graphs have few sizes; steps in pieces have all.
    """
    groups = (group for each in getattr(runner, "attn_groups", ()) for group in each)
    builders = (builder for group in groups for builder in group.metadata_builders)
    return [builder for builder in builders if getattr(builder, "enable_cuda_graph", False)]


def _telling(builders: list[Any], streaming: Callable[[], bool]) -> Callable[[], bool]:
    """Return `streaming`, made to tell `builders` before each step that no whole graph runs."""

    def telling() -> bool:
        now = streaming()
        for builder in builders:
            builder.enable_cuda_graph = not now
        return now

    return telling


def _gate_dispatcher(
    dispatcher: Any, streaming: Callable[[], bool], fitting: set[CUDAGraphMode]
) -> bool:
    """Gate of the first model runner: while `streaming`, its dispatcher takes only `fitting` modes,
    or runs eagerly. True if there are graphs of a fitting mode."""
    original = dispatcher.dispatch

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if streaming():
            asked = kwargs.get("valid_modes") or fitting
            left_out = kwargs.get("invalid_modes") or set()
            # Eagerly is always possible.
            modes = (fitting & asked) - left_out | {CUDAGraphMode.NONE}
            kwargs |= {"valid_modes": modes, "invalid_modes": None}
        return original(*args, **kwargs)

    dispatcher.dispatch = dispatch
    return any(dispatcher.cudagraph_keys[mode] for mode in fitting - {CUDAGraphMode.NONE})


def _gate_manager(manager: Any, streaming: Callable[[], bool], fitting: set[CUDAGraphMode]) -> bool:
    """Gate of the second model runner: while `streaming`, it chooses only among captured graphs of
    `fitting` modes. True if there are any."""
    original, all_of_them = manager.dispatch, manager._candidates
    some = {
        size: [graph for graph in graphs if graph.cg_mode in fitting]
        for size, graphs in all_of_them.items()
    }

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        manager._candidates = some if streaming() else all_of_them
        return original(*args, **kwargs)

    manager.dispatch = dispatch
    return any(some.values())
