"""CUDA graphs on a host: the operations of a capture are recorded, and issued again by a replay.

As on a device, the addresses are those of the capture, and their content is that of the moment.
Python code runs at the capture only, so a hook that waits for a layer is in no graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Capturing(TorchDispatchMode):
    """Mode of torch in which each operator runs and, during a capture, is recorded in the graph.
    Instead of an operator of vLLM, such as attention, the operators inside it are recorded.
    """

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
    """Run an operator again, and copy its new outputs to the places of the old ones. A view needs
    no copy.
    """
    fresh = func(*args, **kwargs)
    pairs = zip(made, fresh, strict=True) if isinstance(made, (tuple, list)) else [(made, fresh)]
    for old, new in pairs:
        if isinstance(old, torch.Tensor) and old is not new:
            old.copy_(new)


class CUDAGraph:
    """Stand-in for `torch.cuda.CUDAGraph`, with the parts that vLLM uses."""

    captured = replayed = 0
    """Counts of all graphs."""
    failing: int | None = None
    """Number of the capture, counted over all graphs from 1, for which there is no memory."""

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
    """Stand-in for the context `torch.cuda.graph`."""
    made.capture_begin(pool)
    try:
        yield
    finally:
        made.capture_end()


def note_kernels() -> None:
    """Record launches of Triton kernels too, which are no operators of torch."""
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
