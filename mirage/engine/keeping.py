"""Weights that outlive their engine: they are in the keeper's memory when the engine starts, or are
put there.

vLLM builds its model as usual. If the keeper has its weights, no file is read: parameters get the
values that they had after loading, vLLM processes them, and parameters of layers get their
processed values. Otherwise the loaded and processed values are noted, and go to the keeper when the
layers are placed. In both cases the layers stream from that one copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from vllm.model_executor.model_loader import base_loader, default_loader

from mirage.engine import derived, master
from mirage.engine.identity import identity_of
from mirage.engine.params import PlacedLayers
from mirage.engine.placement import PlacedUnit
from mirage.engine.tensors import storage_of
from mirage.keeper.client import KeeperClient, MasterRefused
from vmm.copy_out import copy_out
from vmm.driver import Driver, VmmError
from vmm.host_file import HostFile

logger = logging.getLogger("mirage.engine.keeping")

NOT_KEPT = "weights are not kept in host memory: %s"
UNFIT = "weights in host memory are not what this engine needs, it reads its checkpoint: %s"


class UnfitMaster(Exception):
    """Error: a model cannot be made from a master as it is by loading; the message says why."""


class FilledMaster:
    """Master that this engine fills while it loads."""

    def __init__(self, client: KeeperClient, layers: Sequence[torch.nn.Module]) -> None:
        self._fd, self._filled, self._layers = client.fd, client.filled, layers
        self._raw: dict[str, master.StoredTensor] = {}
        self._raw_end = 0
        self._named: dict[str, torch.nn.Parameter] = {}
        self._before: dict[str, str] = {}
        self._derived: dict[str, str] = {}

    def load(self, model: torch.nn.Module, load: Callable[[], None]) -> None:
        """Call `load`, and copy the tensors of `_as_loaded` into the master. Raise `VmmError` only
        after loading."""
        self._before = derived.seen(model)
        load()
        raw = _as_loaded(model, self._layers)
        self._raw, self._raw_end = master.packed(raw, 0)
        if not self._raw_end:
            return
        with closing(HostFile.grown(self._fd, self._raw_end)) as file:
            for name, place in self._raw.items():
                master.view(file.address, place).copy_(raw[name])

    def processed(self, model: torch.nn.Module) -> None:
        """Note the values that processing has produced."""
        self._named = _inside(model, self._layers)
        after = derived.seen(model, _storages(self._named))
        self._derived = derived.changed(self._before, after)

    def masters(self, driver: Driver, placed: Sequence[PlacedUnit]) -> tuple[HostFile, list[int]]:
        """Write the layers to the master, and let the keeper seal it; return its file and the
        units' host addresses. If the keeper refuses it, the master lasts only as long as this
        engine. Raises `VmmError` if memory cannot be had or copied."""
        units, end = master.unit_places([one.nbytes for one in placed], self._raw_end)
        moved = _offsets(placed, units)
        inside = {n: moved[id(p)] for n, p in self._named.items() if id(p) in moved}
        left = {n: p for n, p in self._named.items() if n not in inside and p.numel()}
        places, end = master.packed(left, end)
        processed = {n: master.stored(self._named[n], at) for n, at in inside.items()} | places
        table = master.encoded(master.MasterTable(self._raw, processed, units, self._derived))
        with ExitStack() as undo:
            file = HostFile.grown(self._fd, end + len(table), node=driver.host_node)
            undo.callback(file.close)
            both = list(zip(placed, units, strict=True))
            out = [(file.address + unit.offset, one.home.address, one.nbytes) for one, unit in both]
            copy_out(driver, out, locked=False)
            for name, parameter in left.items():
                master.view(file.address, places[name]).copy_(parameter)
            file.tensor()[-len(table) :] = torch.frombuffer(bytearray(table), dtype=torch.uint8)
            file.leave()
            try:
                self._filled()
            except MasterRefused as error:
                logger.warning(NOT_KEPT, error)
            file.read()
            undo.pop_all()
        return file, [file.address + unit.offset for unit in units]

    def close(self) -> None:
        """Do nothing: no file stays open between two calls."""


class WholeMaster:
    """Complete master in the keeper, from which this engine takes its weights. The constructor
    raises `UnfitMaster` or `VmmError` if it cannot be read."""

    def __init__(self, client: KeeperClient, layers: Sequence[torch.nn.Module]) -> None:
        self._layers, self._file = layers, HostFile(client.fd)
        try:
            self._table = master.decoded(self._file.tensor().numpy().data)
        except master.OddMaster as error:
            self._file.close()
            raise UnfitMaster(str(error)) from None

    def load(self, model: torch.nn.Module, load: Callable[[], None]) -> None:
        """Copy values from the master into the model instead of calling `load`: the loaded ones of
        `_as_loaded`, and the processed ones of the layers. A layer's parameter whose shape or dtype
        changes by processing is cleared until `processed`. Raise `UnfitMaster` if the model has
        other tensors than the master."""
        table, raw = self._table, _as_loaded(model, self._layers)
        if raw.keys() != table.raw.keys():
            raise UnfitMaster(_other("tensors", raw.keys() ^ table.raw.keys()))
        for name, tensor in raw.items():
            self._copy(name, table.raw[name], tensor)
        for name, parameter in _inside(model, self._layers).items():
            place = table.processed.get(name)
            if name in raw:
                continue
            if place is not None and master.fits(place, parameter):
                self._copy(name, place, parameter)
            else:  # what processing makes of it is put in place afterwards
                parameter.data.zero_()

    def processed(self, model: torch.nn.Module) -> None:
        """Put the processed values of the layers in place from the master. Raise `UnfitMaster` if
        the layers need other tensors than the master has, or if the model's other values
        (`derived.py`) then differ from those of the engine that filled it."""
        table, named = self._table, _inside(model, self._layers)
        wanted = {name for name, parameter in named.items() if parameter.numel()}
        if wanted != table.processed.keys():
            raise UnfitMaster(_other("processed tensors", wanted ^ table.processed.keys()))
        for name in wanted:
            self._copy(name, table.processed[name], named[name])
        now = derived.seen(model, _storages(named))
        if odd := {name for name, said in table.derived.items() if now.get(name) != said}:
            raise UnfitMaster(_other("values", odd))
        self._named = named

    def masters(self, driver: Driver, placed: Sequence[PlacedUnit]) -> tuple[HostFile, list[int]]:
        """Return the file of this master, and the address in host memory of each unit. Raise
        `UnfitMaster` if the layers are divided into other units, or their parameters lie at other
        offsets."""
        units, table = self._table.units, self._table
        if [one.nbytes for one in placed] != [unit.nbytes for unit in units]:
            raise UnfitMaster("its layers are of another size")
        moved = _offsets(placed, units)
        for name, parameter in self._named.items():
            if moved.get(id(parameter), -1) not in (-1, table.processed[name].offset):
                raise UnfitMaster(f"{name} lies elsewhere")
        return self._file, [self._file.address + unit.offset for unit in units]

    def close(self) -> None:
        """Unmap the file, so that its memory is free once the keeper drops this master. Not to be
        called after `masters` has returned it. Idempotent."""
        self._file.close()

    def _copy(self, name: str, place: master.StoredTensor, tensor: torch.Tensor) -> None:
        if not master.fits(place, tensor):
            raise UnfitMaster(f"{name} is {place.dtype} of shape {list(place.shape)}")
        tensor.data.copy_(master.view(self._file.address, place))


class Keeping:
    """Weights of one engine that starts. Without a `socket` of a keeper nothing is kept.

    `parameters` knows the layers as soon as vLLM has built its model.
    """

    def __init__(self, socket: str | None, tenant: str, parameters: PlacedLayers) -> None:
        self._socket, self._tenant, self._parameters = socket, tenant, parameters
        self._client: KeeperClient | None = None
        self._master: FilledMaster | WholeMaster | None = None
        self._file: HostFile | None = None
        self._model: torch.nn.Module | None = None
        """Model whose weights are kept; None before it is loaded."""

    @property
    def whole(self) -> bool:
        """True if the keeper has a complete master, from which this engine takes its weights; False
        again after `masters`."""
        return isinstance(self._master, WholeMaster)

    @contextmanager
    def loading(self, vllm_config: Any) -> Iterator[None]:
        """Context in which vLLM loads the model: the first one that it loads takes its weights from
        the keeper's master or fills one; a drafter, loaded after it, is read from its own files.

        Raise `UnfitMaster` if the kept weights were not the needed ones: then call `gives_up`, and
        load anew.
        """
        if self._socket is None:
            yield
            return
        loader: Any = default_loader.DefaultModelLoader
        load, process = loader.load_weights, base_loader.process_weights_after_loading
        waiting, keeping = [vllm_config], self

        def load_weights(self: Any, model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            if waiting and type(self) is loader:
                keeping._ask(waiting.pop(), model)
                keeping._load(model, lambda: load(self, model, *args, **kwargs))
            else:
                load(self, model, *args, **kwargs)

        def processed(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            self._process(model, lambda: process(model, *args, **kwargs))

        loader.load_weights = load_weights
        base_loader.process_weights_after_loading = processed
        try:
            yield
        finally:
            loader.load_weights, base_loader.process_weights_after_loading = load, process

    def masters(self, driver: Driver, placed: Sequence[PlacedUnit]) -> Sequence[int] | None:
        """Return the host addresses of the masters of the placed units, page-locked. From then on
        this engine brings them to each keeper that replaces the present one.

        None if there is no master, or, with a warning, if it cannot be used.
        """
        if self._master is None:
            return None
        try:
            file, addresses = self._master.masters(driver, placed)
        except UnfitMaster as error:
            logger.warning(NOT_KEPT, error)
            self._refuse(str(error))
            return None
        except (VmmError, OSError) as error:
            logger.warning(NOT_KEPT, error)
            self.close()
            return None
        self._master = None
        end = addresses[-1] + placed[-1].nbytes
        try:
            driver.pin(addresses[0], end - addresses[0], read_only=True)
        except (VmmError, OSError) as error:
            logger.warning(NOT_KEPT, error)
            self.close()
            file.close()
            return None
        self._file = file
        if self._client is not None:
            self._client.outlive()
        return addresses

    def gives_up(self, error: UnfitMaster) -> None:
        """Tell the keeper not to offer these weights to any engine, and leave it. `error` is the
        reason."""
        logger.warning(UNFIT, error)
        self._refuse(str(error))

    def close(self) -> None:
        """End the connection to the keeper, which from then on does not count this engine as a user
        of the master. A master that is not used is unmapped. A second call does nothing."""
        if self._master is not None:
            self._master.close()
            self._master = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, vllm_config: Any, model: torch.nn.Module) -> None:
        parameters = self._parameters
        if parameters.stays is not None or (identity := identity_of(vllm_config)) is None:
            return
        tensors = list(model.parameters())
        if any(is_lazy(one) or one.is_meta for one in tensors):
            logger.warning(NOT_KEPT, "its tensors are made while they are loaded")
            return
        nbytes = sum(one.numel() * one.element_size() for one in tensors)
        assert self._socket is not None
        try:
            self._client = KeeperClient(Path(self._socket), self._tenant, identity, nbytes)
        except MasterRefused as error:
            logger.warning(NOT_KEPT, error)
            return
        logger.info("weights %s", "are in host memory" if self._client.whole else "are loaded")

    def _load(self, model: torch.nn.Module, load: Callable[[], None]) -> None:
        self._model = model
        if (client := self._client) is None:
            load()
            return
        kind = WholeMaster if client.whole else FilledMaster
        loaded = []

        def once() -> None:
            load()
            loaded.append(True)

        try:
            self._master = made = kind(client, self._parameters.layers)
            made.load(model, once)
        except (VmmError, OSError) as error:
            logger.warning(NOT_KEPT, error)
            self.close()
            if not loaded:
                load()

    def _process(self, model: torch.nn.Module, process: Callable[[], None]) -> None:
        made = self._master
        if made is None or self._client is None or model is not self._model:
            process()
            return
        try:
            process()
        except Exception as error:
            if self._client.whole:  # of numbers that processing does not expect
                raise UnfitMaster(f"{type(error).__name__}: {error}") from error
            raise
        made.processed(model)

    def _refuse(self, why: str) -> None:
        if self._client is not None:
            self._client.unfit(why)
        self.close()


def _layer_parameters(layers: Sequence[torch.nn.Module]) -> set[int]:
    return {id(parameter) for layer in layers for parameter in layer.parameters()}


def _inside(
    model: torch.nn.Module, layers: Sequence[torch.nn.Module]
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of the layers, by their names in the model."""
    inside = _layer_parameters(layers)
    return {name: one for name, one in model.named_parameters() if id(one) in inside}


def _as_loaded(
    model: torch.nn.Module, layers: Sequence[torch.nn.Module]
) -> dict[str, torch.Tensor]:
    """Return the tensors that are kept as loaded: all parameters outside the layers, and buffers
    that a checkpoint may have.

    Small parameters of the layers are included, because processing makes more than a parameter of
    them.
    """
    inside = _layer_parameters(layers)
    parameters: dict[str, torch.Tensor] = {
        name: one for name, one in model.named_parameters() if id(one) not in inside or _small(one)
    }
    buffers = {name for name, _ in model.named_buffers()}
    return parameters | {n: t for n, t in model.state_dict().items() if n in buffers}


def _small(parameter: torch.Tensor) -> bool:
    """True for numbers, vectors and convolutions along a sequence."""
    return parameter.dim() < 2 or (parameter.dim() == 3 and parameter.shape[1] == 1)


def _storages(named: dict[str, torch.nn.Parameter]) -> set[int]:
    return {storage_of(parameter) for parameter in named.values()}


def _offsets(placed: Sequence[PlacedUnit], units: Sequence[master.StoredUnit]) -> dict[int, int]:
    """Return the offset in the master of each tensor that was placed, by the tensor's id."""
    both = zip(placed, units, strict=True)
    return {key: unit.offset + at for one, unit in both for key, at in one.offsets.items()}


def _other(what: str, names: set[str]) -> str:
    return f"{len(names)} {what} are others, such as {min(names)!r}"
