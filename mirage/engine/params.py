"""Parameters of decoder layers at fixed addresses.

The layers are found when vLLM has built its model. After the weights are loaded and processed,
`place` moves every parameter that belongs to one layer alone into that layer's reserved range: the
same tensor objects get new storage for good. A parameter that a layer shares with another, or with
anything outside, stays where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.config import get_current_vllm_config

from mirage.engine import stack
from mirage.engine.backend import Backend
from mirage.engine.expert_call import split
from mirage.engine.experts import ExpertLayer, ExpertsStay, find, hook, layout
from mirage.engine.pieces import GraphPieces, UnknownPieces
from mirage.engine.placement import PlacedUnit, Unit, moved, placements_of, planned
from mirage.engine.tensors import Holdings
from mirage.streaming.expert_layout import ExpertLayout
from mirage.streaming.experts import ExpertStreamer
from mirage.streaming.transfer import LayerFrame, LayerStreamer
from mirage.units import MIB, align_up
from vmm.copy_out import copy_out
from vmm.driver import DeviceError, Driver
from vmm.host import HostBuffer
from vmm.pages import PagePool
from vmm.space import Range

logger = logging.getLogger("mirage.engine.params")

SMALL = MIB
"""Size in bytes up to which the old place of a parameter is kept until the model is proven: freed
memory could be allocated again with the right content in it."""

Masters = Callable[[Driver, Sequence[PlacedUnit]], Sequence[int] | None]
"""Function that returns the host addresses of the units' masters; None if they are to be made
here."""


NOT_HOLLOW = "the weights of its layers are not in host memory: it needs its share of the device"


class HollowError(RuntimeError):
    """Error: a start without memory for the layers is not possible; the message says why."""


class PlacedLayers:
    """Decoder layers of one engine. `place` moves them to fixed address ranges, so that they can
    stream.

    If `place` is not called, the layers only keep their weights from oneDNN on a CPU, so that all
    policies run the same kernels.
    """

    def __init__(
        self, moves: bool = True, experts_stay: str | None = None, *, split: bool = False
    ) -> None:
        """Initialise; `experts_stay` is the reason why experts are not to be given away, None if
        they may be.

        `split` is True if graphs or compiled pieces would have to be split where experts are
        called.
        """
        self.experts_stay = experts_stay
        self._split = split
        self.experts: list[ExpertLayer] = []
        """Experts of each layer that has some, if they are of a kind that can be given away, though
        `experts_stay` may forbid it; else empty."""
        self.layers: list[torch.nn.Module] = []
        self.stays: str | None = None if moves else "max_percent is 0"
        """Reason why the layers stay where vLLM put them; None if they move."""
        self.pieces: GraphPieces | None = None
        """Pieces that stream instead of whole layers, if steps run in pieces; else None."""
        self.units: list[Unit] = []
        """Storages that move, for each unit (a layer, or a piece), in the order in which steps need
        the units."""
        self.masters: list[HostBuffer] = []
        self.left: list[torch.Tensor] = []
        """Old places of small parameters, poisoned."""
        self._sizes = stack.MatrixSizes(())
        self._built = False
        self._built_bytes = 0

    # -- finding ------------------------------------------------------------------------

    def found(self, model: torch.nn.Module) -> None:
        """Find the layers of `model`, which vLLM has built and will load weights into next, and the
        reason if they must stay. Otherwise, on a CPU, their linear layers are kept from oneDNN
        (`stack.keep_weights`)."""
        self._built = True
        self.layers = stack.find(model)
        why = stack.why_stays(self.layers, model)
        self.stays = self.stays or why
        self._sizes = stack.MatrixSizes(self.layers)
        self._built_bytes = max(map(stack.parameter_bytes, self.layers), default=0)
        if why is None:
            # Also where the policy moves none: on a CPU, policies would else differ by kernels, in
            # the time of a step and in what it rounds.
            stack.keep_weights(self.layers)

    def loaded(self, model: torch.nn.Module) -> None:
        """Note that the weights are loaded, and find the parameters and experts that can move."""
        if not self._built:
            self.stays = self.stays or "vLLM built it in a way that is not known here"
            self.found(model)
        if self.stays is None and (name := self._sizes.emptied()):
            self.stays = stack.GONE.format(name)
        self.units = units(self.layers, model)
        if self.stays is None:
            self._find_experts()

    def _find_experts(self) -> None:
        """Find experts that can be given away, and put their weights first in their layers, so that
        they begin on a page.

        That is done also if they are to stay: a layer then has the size that `mirage check`
        computed.
        """
        try:
            self.experts = find(self.layers, called=self._split)
            first = {id(weight): n for one in self.experts for n, weight in enumerate(one.weights)}
            moving = self.moving()
            if not first.keys() <= moving:
                raise ExpertsStay("something else looks at their weights")
        except ExpertsStay as error:
            self.experts, self.experts_stay = [], self.experts_stay or str(error)
            return
        self._experts_first()

    def _experts_first(self) -> None:
        first = {id(weight): n for one in self.experts for n, weight in enumerate(one.weights)}
        for unit in self.units:
            unit.sort(key=lambda storage: min(first.get(id(t), len(first)) for t in storage))

    def expert_layout(self, page_bytes: int) -> ExpertLayout | None:
        """Return the layout of experts that can be given away; None if none can: `experts_stay`
        then has the reason."""
        if self.experts_stay is not None:
            return None
        try:
            return layout(self.experts, page_bytes)
        except ExpertsStay as error:
            self.experts_stay = str(error)
            return None

    def hidden(self) -> str | None:
        """Return the reason why the weights of the layers cannot be read; None if their parameters
        can be read."""
        if not self.layers:
            return "its layers are not known"
        name = self._sizes.emptied()
        return stack.GONE.format(name) if name else None

    def in_pieces(self, pieces: GraphPieces) -> None:
        """Let pieces move instead of layers. Raise `UnknownPieces` if two pieces need parts of one
        storage.

        Experts that are in another piece than their layer's are treated as if there were none.
        """
        home = {id(t): storage for unit in self.units for storage in unit for t in storage}
        sorted_units: list[Unit] = []
        for parameters in pieces.parameters:
            storages = {id(home[id(p)]): home[id(p)] for p in parameters if id(p) in home}
            sorted_units.append(list(storages.values()))
        if sum(map(len, sorted_units)) != sum(map(len, self.units)):
            raise UnknownPieces("two pieces look at one storage")
        self.pieces, self.units = pieces, sorted_units
        if not all(_within(one.weights, sorted_units[one.index]) for one in self.experts):
            self.experts, self.experts_stay = [], "they are not behind their layer's attention"
        self._experts_first()

    def moving(self) -> set[int]:
        """Return the ids of all tensors that move."""
        return {id(t) for unit in self.units for storage in unit for t in storage}

    def unit_bytes(self) -> list[int]:
        """Return the bytes of each unit that moves."""
        return [placements_of(unit)[1] for unit in self.units]

    def layer_bytes(self, page_bytes: int) -> int:
        """Return the page-rounded size in bytes of the largest layer, the unit that moves.

        If the layers stay, this is at least the size of the largest layer as vLLM built it, before
        its weights were loaded: a kernel may have packed the weights into memory of its own since.
        """
        largest = max((placements_of(unit)[1] for unit in self.units), default=0)
        if self.stays is not None:
            largest = max(largest, self._built_bytes)
        return align_up(largest, page_bytes)

    # -- placing ------------------------------------------------------------------------

    def place(
        self,
        backend: Backend,
        pool: PagePool,
        *,
        chunk_bytes: int | None = None,
        masters: Masters = lambda driver, placed: None,
    ) -> LayerStreamer:
        """Move all layers into reserved ranges and hook their forward functions.

        `chunk_bytes` is the size of the parts in which a layer is copied, None for whole layers.
        `masters` may return existing masters. Raises `VmmError` if the grant or the device has no
        room for the layers, or host memory for masters cannot be had or locked.
        """
        driver = backend.driver
        frame = self.layer_bytes(driver.page_bytes)
        placed = []
        for unit in self.units:
            home = Range(driver, frame)
            home.back(0, pool.take(frame // driver.page_bytes, "layer"))
            placed.append(self._fill(home, unit, copies=True))
            # The driver copies on a stream of its own, which does not wait for torch's.
            backend.compute.synchronize()
            backend.uncache()
        addresses = masters(driver, placed) or self._own_masters(driver, placed)
        return self._streamed(backend, pool, placed, addresses, chunk_bytes, absent=False)

    def place_hollow(
        self, backend: Backend, pool: PagePool, *, chunk_bytes: int | None, masters: Masters
    ) -> LayerStreamer:
        """Place the layers without memory for any: they are absent, and will be loaded from
        `masters`.

        Raise `HollowError` if there are no masters.
        """
        driver = backend.driver
        frame = self.layer_bytes(driver.page_bytes)
        placed = [planned(Range(driver, frame), unit) for unit in self.units]
        if (addresses := masters(driver, placed)) is None:
            raise HollowError(NOT_HOLLOW)
        for one, unit in zip(placed, self.units, strict=True):
            self._fill(one.home, unit, copies=False)
            backend.uncache()
        return self._streamed(backend, pool, placed, addresses, chunk_bytes, absent=True)

    def _streamed(
        self,
        backend: Backend,
        pool: PagePool,
        placed: Sequence[PlacedUnit],
        addresses: Sequence[int],
        chunk_bytes: int | None,
        *,
        absent: bool,
    ) -> LayerStreamer:
        """Return a streamer, and hook layers or pieces so that a step waits for parameters when it
        reaches them. `absent` layers have no memory yet."""
        homes = [
            LayerFrame(index, one.home, address, one.nbytes, backend.driver.event())
            for index, (one, address) in enumerate(zip(placed, addresses, strict=True))
        ]
        streamer = self._streamer(backend, pool, homes, chunk_bytes, absent=absent)
        if self.pieces is not None:
            self.pieces.order(streamer)
        else:
            for index, module in enumerate(self.layers):
                module.forward = _ordered(module.forward, streamer, index)
        logger.info("layers placed count=%d", len(homes))
        return streamer

    def _streamer(
        self,
        backend: Backend,
        pool: PagePool,
        homes: list[LayerFrame],
        chunk_bytes: int | None,
        *,
        absent: bool,
    ) -> LayerStreamer:
        driver, compute = backend.driver, backend.compute
        lie = self.expert_layout(driver.page_bytes)
        more: Any = {"chunk_bytes": chunk_bytes, "absent": absent}
        if lie is None:
            return LayerStreamer(driver, pool, homes, compute, **more)
        streamer = ExpertStreamer(driver, pool, homes, compute, lie, **more)
        hook(self.experts, streamer)
        if self._split:
            runners = [one.runner for one in self.experts]
            split(runners, get_current_vllm_config().compilation_config)
        return streamer

    def _own_masters(self, driver: Driver, placed: Sequence[PlacedUnit]) -> list[int]:
        """Make masters that last as long as this process, and return their addresses."""
        for one in placed:
            master = HostBuffer(one.nbytes, driver.host_node)
            _lock(driver, master.address, one.nbytes)
            copy_out(driver, [(master.address, one.home.address, one.nbytes)], locked=True)
            self.masters.append(master)
        return [master.address for master in self.masters]

    def _fill(self, home: Range, unit: Unit, *, copies: bool) -> PlacedUnit:
        """Move the tensors of one unit to `home`, with their content if `copies`."""
        placed = planned(home, unit)
        for placement in placements_of(unit)[0]:
            old = moved(placement, home, copies=copies)
            if old.untyped_storage().nbytes() <= SMALL:
                self.left.append(old)
        return placed


def units(layers: Sequence[torch.nn.Module], model: torch.nn.Module) -> list[Unit]:
    """Return for each layer the storages of parameters that belong to it alone: these can move."""
    holdings = Holdings(layers, model)
    return [
        [holdings.tensors[storage] for storage in holdings.only_of(index)]
        for index in range(len(layers))
    ]


def _within(weights: Sequence[torch.Tensor], unit: Unit) -> bool:
    """True if all of the weights move with `unit`."""
    return {id(weight) for weight in weights} <= {id(t) for storage in unit for t in storage}


def _ordered(
    forward: Callable[..., Any], streamer: LayerStreamer, index: int
) -> Callable[..., Any]:
    """Return `forward` with the streamer's `before` and `after` around it; they are skipped while
    nothing streams."""

    def ordered(*args: Any, **kwargs: Any) -> Any:
        if not streamer.streaming:
            return forward(*args, **kwargs)
        streamer.before(index)
        out = forward(*args, **kwargs)
        streamer.after(index)
        return out

    return ordered


def _lock(driver: Driver, address: int, nbytes: int) -> None:
    """Lock a master's memory. If that is refused, raise `DeviceError`, which says how to serve
    without it."""
    try:
        driver.pin(address, nbytes)
    except DeviceError as error:
        raise DeviceError(
            f"host memory cannot be locked, from which layers stream ({error}): write "
            "max_percent: 0 for this model, or leave the GPU's confidential mode"
        ) from None
