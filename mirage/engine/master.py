"""Layout of a master: tensors by their names, and units as they are streamed.

From its start: parameters outside the layers, buffers and small ones of the layers, as they were
loaded and before anything was made of them. Then the units, of processed parameters. Then what else
the layers have. Last the table that says so, and its length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING

import msgspec

from mirage.units import align_up
from vmm.host import host_tensor

if TYPE_CHECKING:
    import torch

ALIGN = 4096
"""Bytes on which units and tensors start: whole pages of the operating system."""
LENGTH = struct.Struct("!Q")


class StoredTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor's place. `offset` in bytes, `stride` in elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class StoredUnit(msgspec.Struct, frozen=True, array_like=True):
    """A unit's place, in bytes."""

    offset: int
    nbytes: int


class MasterTable(msgspec.Struct, frozen=True, array_like=True):
    """Contents of a master. Tensors by the names that vLLM's model gives them."""

    raw: dict[str, StoredTensor]
    """Tensors as loaded: vLLM processes them again."""
    processed: dict[str, StoredTensor]
    """The layers' parameters after that."""
    units: list[StoredUnit]
    derived: dict[str, str]
    """Other values of the model that came of loading, by their content."""


class OddMaster(Exception):
    """A master that cannot be read; the message says why."""


def stored(tensor: torch.Tensor, offset: int) -> StoredTensor:
    """A tensor that lies there as it lies in memory."""
    name = str(tensor.dtype).removeprefix("torch.")
    return StoredTensor(name, tuple(tensor.shape), tuple(tensor.stride()), offset)


def packed(tensors: Mapping[str, torch.Tensor], offset: int) -> tuple[dict[str, StoredTensor], int]:
    """Places one behind another, each without gaps, from `offset` on; and their end."""
    places = {}
    for name, tensor in tensors.items():
        places[name] = StoredTensor(
            str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), _dense(tensor), offset
        )
        offset = align_up(offset + tensor.numel() * tensor.element_size(), ALIGN)
    return places, offset


def unit_places(sizes: Iterable[int], offset: int) -> tuple[list[StoredUnit], int]:
    """Units one behind another from `offset` on; and their end."""
    units = []
    for nbytes in sizes:
        units.append(StoredUnit(offset, nbytes))
        offset = align_up(offset + nbytes, ALIGN)
    return units, offset


def view(address: int, place: StoredTensor) -> torch.Tensor:
    """The tensor in a master that is mapped there. It must be written to by nobody."""
    import torch

    dtype = getattr(torch, place.dtype)
    last = sum((n - 1) * s for n, s in zip(place.shape, place.stride, strict=True))
    nbytes = (last + 1) * dtype.itemsize if prod(place.shape) else 0
    if not nbytes:
        return torch.empty(place.shape, dtype=dtype)
    flat = host_tensor(address + place.offset, nbytes)
    return flat.view(dtype).as_strided(place.shape, place.stride)


def fits(place: StoredTensor, tensor: torch.Tensor) -> bool:
    """True if what lies there can be copied to `tensor` as it is."""
    return place.shape == tuple(tensor.shape) and f"torch.{place.dtype}" == str(tensor.dtype)


def encoded(table: MasterTable) -> bytes:
    """Bytes for the end of a master."""
    data = msgspec.msgpack.encode(table)
    return data + LENGTH.pack(len(data))


def decoded(memory: memoryview) -> MasterTable:
    """The table at the end of a master. Raises `OddMaster`."""
    try:
        (length,) = LENGTH.unpack_from(memory, len(memory) - LENGTH.size)
        start = len(memory) - LENGTH.size - length
        return msgspec.msgpack.decode(memory[start : start + length], type=MasterTable)
    except (struct.error, msgspec.DecodeError, ValueError) as error:
        raise OddMaster(str(error)) from None


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides without gaps, in the order of the dimensions."""
    strides, step = [], 1
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
