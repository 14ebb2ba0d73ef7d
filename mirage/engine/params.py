"""Decoder layers' parameters at fixed addresses, through vLLM's own offloader hook.

vLLM calls `wrap_modules` with the decoder stack while it builds the model. After the weights
are loaded and processed, `place` moves every parameter of every layer into that layer's
reserved range: the same Parameter objects, new storage, for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.offloader.base import BaseOffloader

from mirage.engine.backend import Backend
from mirage.engine.pieces import Pieces
from mirage.transfer import Layer, LayerStreamer
from vmm.host import HostBuffer
from vmm.pages import PagePool
from vmm.space import Range

logger = logging.getLogger("mirage.engine.params")

ALIGN, ALIGN_ON_GPU = 64, 512
"""Where parameters start, as allocators have it: kernels are chosen by that."""


class UnsupportedModel(RuntimeError):
    """A model whose layers cannot be moved; the message says why."""


@dataclass(frozen=True)
class Placement:
    """Where one parameter lies inside its layer's range."""

    parameter: torch.nn.Parameter
    offset: int
    nbytes: int


class FixedParameters(BaseOffloader):
    """Collects the decoder layers; with `place`, gives them fixed, streamable homes.

    Without `place` it only makes vLLM's CPU backend keep plain weights, so that a baseline
    runs the very same linear kernels.
    """

    def __init__(self) -> None:
        self.layers: list[torch.nn.Module] = []
        self.pieces: Pieces | None = None
        """What streams instead of whole layers, if steps are to run in pieces."""
        self.streamer: LayerStreamer | None = None
        self.masters: list[HostBuffer] = []

    # -- vLLM's hook --------------------------------------------------------------------

    def wrap_modules(
        self, modules_generator: Iterator[torch.nn.Module], prefix: str = ""
    ) -> list[torch.nn.Module]:
        """Collect the decoder stack. Raises `UnsupportedModel` if there are two."""
        if self.layers:
            raise UnsupportedModel(
                "the model has more than one stack of layers: serve it with policy static or pooled"
            )
        self.layers = list(modules_generator)
        for layer in self.layers:
            _keep_plain_weights(layer)
        return self.layers

    # -- placing ------------------------------------------------------------------------

    @property
    def units(self) -> list[list[torch.nn.Parameter]]:
        """The parameters of each unit that moves, in the order in which they are needed."""
        units = self.pieces.parameters if self.pieces else [x.parameters() for x in self.layers]
        return [list({id(p): p for p in unit}.values()) for unit in units]

    def layer_bytes(self, page_bytes: int) -> int:
        """Page-rounded size of the largest layer, the unit that moves."""
        largest = max(_plan(unit)[1] for unit in self.units)
        return -(-largest // page_bytes) * page_bytes

    def fixed_bytes(self, model: torch.nn.Module) -> int:
        """Bytes of the parameters outside the decoder layers."""
        inside = {id(p) for layer in self.layers for p in layer.parameters()}
        outside = {id(p): p for p in model.parameters() if id(p) not in inside}
        return sum(_storage_bytes(p) for p in outside.values())

    def place(
        self,
        model: torch.nn.Module,
        backend: Backend,
        pool: PagePool,
        *,
        poison: bool = False,
    ) -> LayerStreamer:
        """Move all layers into reserved ranges and hook their forwards.

        Raises `UnsupportedModel`, or `vmm` errors if the grant does not hold the layers.
        """
        _check_movable(self.layers, model)
        driver = backend.driver
        frame = self.layer_bytes(driver.page_bytes)
        homes = []
        for index, unit in enumerate(self.units):
            placements, nbytes = _plan(unit)
            home = Range(driver, frame)
            home.back(0, pool.take(frame // driver.page_bytes, "layer"))
            for placement in placements:
                _move(placement, home)
            # The driver copies on a stream of its own, which does not wait for torch's.
            backend.compute.synchronize()
            backend.placed()
            master = HostBuffer(nbytes)
            driver.pin(master.address, nbytes)
            driver.copy(master.address, home.address, nbytes)
            self.masters.append(master)
            homes.append(Layer(index, home, master.address, nbytes, driver.event()))
        streamer = LayerStreamer(driver, pool, homes, backend.compute, poison=poison)
        if self.pieces is not None:
            self.pieces.order(streamer)
        else:
            for index, module in enumerate(self.layers):
                module.forward = _ordered(module.forward, streamer, index)
        self.streamer = streamer
        logger.info("layers placed count=%d layer_bytes=%d", len(homes), frame)
        return streamer


def _ordered(
    forward: Callable[..., Any], streamer: LayerStreamer, index: int
) -> Callable[..., Any]:
    """`forward` between the two waits that streaming needs; free while nothing streams."""

    def ordered(*args: Any, **kwargs: Any) -> Any:
        if not streamer.streaming:
            return forward(*args, **kwargs)
        streamer.before(index)
        out = forward(*args, **kwargs)
        streamer.after(index)
        return out

    return ordered


def _keep_plain_weights(layer: torch.nn.Module) -> None:
    """oneDNN would pack the weights away and leave nothing to move (no effect on a GPU)."""
    for module in layer.modules():
        if hasattr(module, "quant_method"):
            module._cpu_skip_gemm_dispatch = True  # type: ignore[assignment]


def _plan(unit: Sequence[torch.nn.Parameter]) -> tuple[list[Placement], int]:
    """Offsets of a unit's parameters and their total size, both in bytes."""
    offset, placements = 0, []
    for parameter in unit:
        if parameter.numel() == 0:
            continue
        align = ALIGN_ON_GPU if parameter.is_cuda else ALIGN
        offset = -(-offset // align) * align
        nbytes = _span_bytes(parameter)
        placements.append(Placement(parameter, offset, nbytes))
        offset += nbytes
    return placements, offset


def _span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element; strided views keep their gaps."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _move(placement: Placement, home: Range) -> None:
    old = placement.parameter.data
    flat = home.tensor(placement.offset, placement.nbytes).view(old.dtype)
    new = flat.as_strided(old.shape, old.stride())
    new.copy_(old)
    placement.parameter.data = new


def _check_movable(layers: list[torch.nn.Module], model: torch.nn.Module) -> None:
    """Raise `UnsupportedModel` for what streaming would silently break."""
    if not layers:
        raise UnsupportedModel(
            "the model does not build its layers through vLLM's make_layers, so they cannot be "
            "moved: serve it with policy static or pooled"
        )
    inside = {p.untyped_storage().data_ptr() for layer in layers for p in layer.parameters()}
    owned = {id(p) for layer in layers for p in layer.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in owned and parameter.untyped_storage().data_ptr() in inside:
            raise UnsupportedModel(f"parameter {name} shares memory with a decoder layer")
    if any(p.numel() == 0 for layer in layers for p in layer.parameters()):
        raise UnsupportedModel(
            "a decoder layer has an emptied weight (packed by a backend), so it cannot be moved"
        )
