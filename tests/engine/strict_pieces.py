"""vLLM's pieces of compiled steps, made as strict as CUDA graphs.

A CUDA graph reads and writes the addresses of its capture, whatever it is given later. Here each
piece keeps its outputs of the first call with inputs of a size, fills these again in later calls,
and counts inputs that lie at other addresses than at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import torch
from torch.utils import _pytree as pytree
from vllm.compilation import backends
from vllm.config import CompilationConfig, CompilationMode


class Call(NamedTuple):
    """Call of an operator, which has a piece of its own."""

    alone: bool
    """True if the piece has nothing else."""
    written_before: bool
    """True if the piece right before gives the tensors that it writes into."""
    allocated_by: list[str]
    """The functions there that make them."""


class Graph:
    """Stand-in for the CUDA graph of a piece; `capturing` is True once steps are
    those of requests.
    """

    capturing: ClassVar[bool] = False
    replays: ClassVar[int] = 0
    elsewhere: ClassVar[int] = 0
    """Inputs that a replay would not have read."""
    _held: ClassVar[list[Any]] = []
    """Inputs stay alive: no address is free for the next step's tensor."""

    def __init__(self, piece: Any) -> None:
        self._piece = piece
        self._captured: dict[Any, tuple[list[int], Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        if not Graph.capturing:
            return self._piece(*inputs)
        tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
        Graph._held.append(tensors)
        size = tuple(one.shape for one in tensors)
        addresses = [one.data_ptr() for one in tensors]
        outputs = self._piece(*inputs)
        if size not in self._captured:
            self._captured[size] = addresses, outputs
            return outputs
        then, kept = self._captured[size]
        Graph.replays += 1
        Graph.elsewhere += sum(a != b for a, b in zip(addresses, then, strict=True))
        return _written(kept, outputs)


def _written(kept: Any, outputs: Any) -> Any:
    for old, new in zip(pytree.tree_leaves(kept), pytree.tree_leaves(outputs), strict=True):
        if isinstance(old, torch.Tensor) and old is not new:
            old.copy_(new)
    return kept


@contextmanager
def strict(operator: str) -> Iterator[list[Call]]:
    """Context in which vLLM compiles in pieces as for a GPU, each wrapped in a `Graph`; gives the
    calls of `operator`.
    """
    calls: list[Call] = []
    split, configured = backends.split_graph, CompilationConfig.set_splitting_ops_for_v1

    def splitting(graph: Any, operators: list[str]) -> Any:
        found = split(graph, operators)
        calls.extend(_calls(found[0], operator))
        return found

    def configuring(config: Any, *args: Any, **kwargs: Any) -> None:
        # A host has made another mode of it, and has not all kernels that fusions look for.
        config.mode, config.backend = CompilationMode.VLLM_COMPILE, "eager"
        config.compile_sizes = []
        configured(config, *args, **kwargs)

    with (
        mock.patch.object(CompilationConfig, "set_splitting_ops_for_v1", configuring),
        mock.patch.object(backends, "split_graph", splitting),
        mock.patch.object(backends, "wrap_with_cudagraph_if_needed", lambda p, *_: Graph(p)),
    ):
        yield calls


def _calls(graph: Any, operator: str) -> Iterator[Call]:
    pieces = [node for node in graph.graph.nodes if node.op == "call_module"]
    for before, piece in zip([None, *pieces], pieces, strict=False):
        module = graph.get_submodule(piece.target)
        calls = [n for n in module.graph.nodes if operator in str(n.target).replace(".", "::")]
        if not calls:
            continue
        others = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
        (call,) = calls
        names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        outputs = [piece.args[names.index(arg.name)] for arg in call.args[:2] if arg is not None]
        makers = [_maker(graph, output) for output in outputs]
        yield Call(
            alone=others == calls,
            written_before=all(maker is before for maker, _ in makers),
            allocated_by=[made for _, made in makers],
        )


def _maker(graph: Any, value: Any) -> tuple[Any, str]:
    """Piece that computes a value, and the name of the function that does so in it."""
    index = 0
    while value.op == "call_function":  # getitem
        value, index = value.args
    module = graph.get_submodule(value.target)
    (outputs,) = next(node for node in module.graph.nodes if node.op == "output").args
    made = outputs[index] if isinstance(outputs, (tuple, list)) else outputs
    return value, getattr(made.target, "__name__", str(made.target))
