"""Captured CUDA graphs beside layers that stream.

No parameter changes its address, so a graph that was captured with all layers resident stays
valid while they are. It has no place for the waits that streamed layers need: while any layer
streams, steps run without a graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from vllm.config import CUDAGraphMode

logger = logging.getLogger("mirage.engine.graphs")


def gate(runner: Any, streaming: Callable[[], bool]) -> bool:
    """Let a model runner of vLLM replay graphs only while nothing streams.

    After it has captured them. False if it has none, or keeps them where we do not know.
    """
    if (manager := getattr(runner, "cudagraph_manager", None)) is not None:
        manager.dispatch = _gated_manager(manager, streaming)
    elif (dispatcher := getattr(runner, "cudagraph_dispatcher", None)) is not None:
        dispatcher.dispatch = _gated_dispatcher(dispatcher, streaming)
    else:
        return False
    logger.info("CUDA graphs are replayed while no layer streams, and left out while one does")
    return True


def _gated_dispatcher(dispatcher: Any, streaming: Callable[[], bool]) -> Callable[..., Any]:
    """Of the first model runner: modes can be left out of a question."""
    original = dispatcher.dispatch

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if streaming():
            kwargs |= {"valid_modes": {CUDAGraphMode.NONE}, "invalid_modes": None}
        return original(*args, **kwargs)

    return dispatch


def _gated_manager(manager: Any, streaming: Callable[[], bool]) -> Callable[..., Any]:
    """Of the second model runner: it answers as before its graphs were captured."""
    original = manager.dispatch

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if not streaming():
            return original(*args, **kwargs)
        captured, manager._graphs_captured = manager._graphs_captured, False
        try:
            return original(*args, **kwargs)
        finally:
            manager._graphs_captured = captured

    return dispatch
