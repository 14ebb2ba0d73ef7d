"""CUDA graphs on a host: what a capture issues is noted, and issued again by each replay.

As of a device's: addresses are those of the capture, what lies behind them is what is there now.
Python runs at the capture alone, so that a hook that waits for a layer is in no graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Capturing(TorchDispatchMode):
    """Tells the graph that is being captured of each operator, vLLM's attention taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.graph: CUDAGraph | None = None
        self.depth = 0
        """Operators that are being taken apart; the mode must stay as long."""
        self.entered = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "vllm":
            return self._apart(func, args, kwargs)
        made = func(*args, **kwargs)
        if self.graph is not None:
            self.graph.issued.append(lambda: _again(func, args, kwargs, made))
        return made

    def _apart(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.depth += 1
        try:
            with self:
                return func._op_dk(torch._C.DispatchKey.CPU, *args, **kwargs)
        finally:
            self.depth -= 1

    def begin(self, graph: CUDAGraph) -> None:
        assert self.graph is None, "captures one graph at a time"
        self.graph = graph
        if not self.entered:
            self.__enter__()
            self.entered = True

    def end(self) -> None:
        self.graph = None
        if not self.depth:
            self.__exit__(None, None, None)
            self.entered = False


CAPTURING = Capturing()
KERNELS: Counter[str] = Counter()
"""Triton's kernels that were launched, replays left out."""


def _again(func: Any, args: Any, kwargs: Any, made: Any) -> None:
    """Copy new outputs of an operator to where they lay before. A view is there already."""
    fresh = func(*args, **kwargs)
    pairs = zip(made, fresh, strict=True) if isinstance(made, (tuple, list)) else [(made, fresh)]
    for old, new in pairs:
        if isinstance(old, torch.Tensor) and old is not new:
            old.copy_(new)


class CUDAGraph:
    """`torch.cuda.CUDAGraph`, as far as vLLM uses it."""

    captured = replayed = 0
    """Counts of all graphs."""
    failing: int | None = None
    """The number of a capture for which there is no memory."""

    def __init__(self) -> None:
        self.issued: list[Callable[[], Any]] = []

    def capture_begin(self, pool: Any = None) -> None:
        CAPTURING.begin(self)

    def capture_end(self) -> None:
        CAPTURING.end()
        CUDAGraph.captured += 1
        if CUDAGraph.captured == CUDAGraph.failing:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def replay(self) -> None:
        CUDAGraph.replayed += 1
        for issue in self.issued:
            issue()


@contextmanager
def graph(made: CUDAGraph, pool: Any = None, stream: Any = None) -> Iterator[None]:
    """`torch.cuda.graph`."""
    made.capture_begin(pool)
    try:
        yield
    finally:
        made.capture_end()


def note_kernels() -> None:
    """Kernels of Triton are launched past torch's operators."""
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        KERNELS[self.fn.__name__] += 1
        if (captured := CAPTURING.graph) is None:
            return launch(self, *args, **kwargs)
        captured.issued.append(lambda: launch(self, *args, **kwargs))
        CAPTURING.graph = None  # the interpreter's own tensors are in no graph
        try:
            launch(self, *args, **kwargs)
        finally:
            CAPTURING.graph = captured

    GridExecutor.__call__ = launched
