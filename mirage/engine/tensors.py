"""Tensors that modules hold, wherever they keep them, and the storages behind them.

A weight may be a parameter, a buffer, a plain attribute (MLA's absorbed weights), part of a tuple
(stacked LoRA adapters), or be kept by an object that computes for the module (experts). Several
tensors may share one storage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch.nn.parameter import is_lazy

Storage = int
"""Identity of a storage, on the meta device too."""
DEEPEST = 8
OUTSIDE = -1
"""Index that stands for no layer, as the holder of tensors that are in none."""
CONFIGURATION = "vllm.config"


def storage_of(tensor: torch.Tensor) -> Storage:
    """Return the identity of a tensor's storage: equal for all tensors that share it, as long as
    one of them lives."""
    return int(tensor.untyped_storage()._cdata)


def held(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Return the tensors that `module` itself holds, its submodules left out. A tensor may come
    more than once."""
    return _within(list(vars(module).values()), DEEPEST, set())


def _within(value: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if not is_lazy(value):
            yield value
            if value._base is not None:
                yield value._base
        return
    parts = _parts(value)
    if depth and parts and id(value) not in seen:
        seen.add(id(value))
        for part in parts:
            yield from _within(part, depth - 1, seen)


def _parts(value: Any) -> Iterable[Any]:
    """Return the parts of a value that may hold tensors: items of containers, variables of
    closures, and attributes of vLLM's helper objects."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set)):
        return list(value)
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
    return list(vars(value).values()) if helps(value) else ()


def helps(value: Any) -> bool:
    """True for an object of vLLM's that may hold tensors of a module which it computes for: it has
    attributes, and is neither a module, a class nor a configuration."""
    where = type(value).__module__
    ours = where.startswith("vllm.") and not where.startswith(CONFIGURATION)
    return ours and hasattr(value, "__dict__") and not isinstance(value, (torch.nn.Module, type))


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class Holdings:
    """Layers that hold each storage of a model, and the tensors through which they hold it."""

    def __init__(self, layers: Iterable[torch.nn.Module], model: torch.nn.Module) -> None:
        self.tensors: dict[Storage, list[torch.Tensor]] = {}
        self.holders: dict[Storage, set[int]] = defaultdict(set)
        inside: set[torch.nn.Module] = set()
        for index, layer in enumerate(layers):
            inside.update(layer.modules())
            for module in layer.modules():
                self._note(module, index)
        for module in model.modules():
            if module not in inside:
                self._note(module, OUTSIDE)

    def only_of(self, index: int) -> list[Storage]:
        """Return the storages of parameters that only layer `index` holds, in the order of its
        modules.
        """
        return [
            storage
            for storage, holders in self.holders.items()
            if holders == {index} and not self._held_elsewhere(storage)
        ]

    def _note(self, module: torch.nn.Module, holder: int) -> None:
        for tensor in held(module):
            storage = storage_of(tensor)
            known = self.tensors.setdefault(storage, [])
            if not any(tensor is one for one in known):
                known.append(tensor)
            self.holders[storage].add(holder)

    def _held_elsewhere(self, storage: Storage) -> bool:
        """True if the storage has no parameter or no element, or if an unknown owner has a tensor
        over it."""
        tensors = self.tensors[storage]
        if not any(isinstance(tensor, torch.nn.Parameter) for tensor in tensors):
            return True
        if tensors[0].is_meta:  # vLLM notes such tensors for itself; they hold nothing
            return False
        mine = tensors[0].untyped_storage()
        seen = len(tensors) + 1  # and `mine`
        count: int = torch._C._storage_Use_Count(mine._cdata)  # type: ignore[attr-defined]
        return count > seen or not any(tensor.numel() for tensor in tensors)


def total_bytes(tensors: Iterable[torch.Tensor], *devices: str) -> int:
    """Return the bytes of the storages behind `tensors` that are on one of `devices` or on the meta
    device, each counted once."""
    storages = {
        storage_of(tensor): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if tensor.device.type in (*devices, "meta")
    }
    return sum(storages.values())
