"""Pieces: the computation between two attentions, and the parameters that it needs.

vLLM can capture a step as a row of CUDA graphs with attention between them, which runs eagerly
(PIECEWISE). Code of ours that waits for a layer can only run there. So the unit that is streamed is
then not a decoder layer but the *piece* after attention i: the rest of layer i, and the part of
layer i + 1 before its attention. The last piece continues with the first layer of the next step:
the pieces are a circle, as many as there are layers and as large.

Which parameters a piece needs is observed in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mirage.engine.instead import instead
from mirage.streaming.transfer import LayerStreamer

Forward = Callable[..., Any]


class UnknownPieces(Exception):
    """Error: a model's pieces cannot be told apart; the message says why."""


class GraphPieces:
    """Parameters of each piece, and the attentions that the pieces follow."""

    def __init__(
        self, attentions: Sequence[Any], parameters: Sequence[list[torch.nn.Parameter]]
    ) -> None:
        self.parameters = parameters
        self.attentions = attentions
        """Attention implementation of each layer."""

    def order(self, streamer: LayerStreamer) -> None:
        """Hook the attentions, at which each piece waits for its parameters and gives its slot to
        the next."""
        for index, attention in enumerate(self.attentions):
            attention.forward = _between(attention.forward, streamer, index)


def _between(attend: Forward, streamer: LayerStreamer, index: int) -> Forward:
    """Return the forward function of attention `index` with two hooks. Before it the streamer hears
    that the piece which ends there has been issued; after it the next piece's parameters are
    awaited."""
    before = (index - 1) % len(streamer.layers)

    def attending(*args: Any, **kwargs: Any) -> Any:
        if not streamer.streaming:
            return attend(*args, **kwargs)
        streamer.after(before)
        out = attend(*args, **kwargs)
        streamer.before(index)
        return out

    return attending


def watched(
    layers: Sequence[torch.nn.Module], step: Callable[[], Any], moving: set[int] | None = None
) -> GraphPieces:
    """Run `step`, which computes the model once or more, and return the parameters that each piece
    needs.

    Only parameters whose ids are in `moving` count; None: all. Raise `UnknownPieces` if a layer has
    not exactly one attention, if attentions are not called in the order of the layers, or if a
    parameter is needed by several pieces or is in no module whose forward was called.
    """
    attentions = [_attention(index, layer) for index, layer in enumerate(layers)]
    watch = _Watch(len(layers))
    with ExitStack() as over:
        for index, attention in enumerate(attentions):
            over.enter_context(watch.attention(attention, index))
        for layer in layers:
            for module in layer.modules():
                over.enter_context(watch.module(module))
        step()
    watch.check()
    return GraphPieces(attentions, _sorted(layers, watch, moving))


def _attention(index: int, layer: torch.nn.Module) -> Any:
    """Return the attention implementation of a layer, whose `forward` vLLM calls outside of
    graphs."""
    found = [module.impl for module in layer.modules() if _attends(module)]
    if len(found) != 1:
        raise UnknownPieces(f"layer {index} has {len(found)} attentions where one was looked for")
    return found[0]


def _attends(module: torch.nn.Module) -> bool:
    """True if the module has an `impl` whose forward computes, as vLLM's attentions have."""
    return hasattr(getattr(module, "impl", None), "forward")


class _Watch:
    """Observer of the piece in which each parameter is needed."""

    def __init__(self, count: int) -> None:
        self.pieces: dict[int, set[int]] = {}
        """Pieces that need a parameter, by the parameter's id."""
        self._count = count
        self._now = count - 1
        self._called: set[int] = set()

    @contextmanager
    def attention(self, attention: Any, index: int) -> Iterator[None]:
        """Context in which piece `index` begins when `attention` is called. A call out of order
        raises `UnknownPieces`."""
        forward = attention.forward

        def counting(*args: Any, **kwargs: Any) -> Any:
            if index != (self._now + 1) % self._count:
                raise UnknownPieces(f"attention {index} follows attention {self._now}")
            self._now = index
            self._called.add(index)
            return forward(*args, **kwargs)

        with instead(attention, counting):
            yield

    def check(self) -> None:
        """Raise `UnknownPieces` for an attention that computes without the forward of its
        `impl`."""
        if missing := sorted(set(range(self._count)) - self._called):
            raise UnknownPieces(f"attention {missing[0]} was never called by its forward")

    @contextmanager
    def module(self, module: torch.nn.Module) -> Iterator[None]:
        """Context that notes the parameters of `module` as needed by the piece in which its forward
        begins.

        All of them, because a module may use its parts without calling their forward functions
        (experts). Only its own if it has an attention inside, because then it reaches into the next
        piece.
        """
        whole = not any(_attends(part) for part in module.modules())
        has = [id(parameter) for parameter in module.parameters(recurse=whole)]

        def called(*_: Any) -> None:
            for parameter in has:
                self.pieces.setdefault(parameter, set()).add(self._now)

        hook = module.register_forward_pre_hook(called)
        try:
            yield
        finally:
            hook.remove()


def _sorted(
    layers: Sequence[torch.nn.Module], watch: _Watch, moving: set[int] | None
) -> list[list[torch.nn.Parameter]]:
    """Return every parameter of the layers under the one piece that needs it."""
    pieces: list[list[torch.nn.Parameter]] = [[] for _ in layers]
    for index, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            if moving is not None and id(parameter) not in moving:
                continue
            seen = watch.pieces.get(id(parameter), set())
            if len(seen) != 1:
                where = f"needed by pieces {sorted(seen)}" if seen else "not seen in use"
                raise UnknownPieces(f"parameter {name} of layer {index} is {where}")
            pieces[seen.pop()].append(parameter)
    return pieces
