"""Layout of a master: tensors by their names, and units as they are streamed.

A unit is a layer, or the piece between two attentions. First come parameters outside the layers,
buffers, and small parameters of the layers, as they were loaded and before processing. Then come
the units, of processed parameters, then the other parameters of the layers. Last come the table of
all these, and its length.
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
"""Bytes to which the offsets of units and tensors are aligned: whole pages of the operating
system."""
LENGTH = struct.Struct("!Q")


class StoredTensor(msgspec.Struct, frozen=True, array_like=True):
    """Place of a tensor in a master. `offset` is in bytes, `stride` in elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class StoredUnit(msgspec.Struct, frozen=True, array_like=True):
    """Offset and size in a master, in bytes, of one unit that is streamed: a layer, or the piece
    between two attentions."""

    offset: int
    nbytes: int


class MasterTable(msgspec.Struct, frozen=True, array_like=True):
    """Contents of a master. Tensors are named as in vLLM's model."""

    raw: dict[str, StoredTensor]
    """Tensors as loaded, which vLLM processes again."""
    processed: dict[str, StoredTensor]
    """Parameters of the layers after processing."""
    units: list[StoredUnit]
    derived: dict[str, str]
    """Other values of the model that loading left in it, by name, as digests of their content."""


class OddMaster(Exception):
    """Error: a master cannot be read; the message says why."""


def stored(tensor: torch.Tensor, offset: int) -> StoredTensor:
    """Return the place of a tensor at `offset`, with the strides that it has in memory."""
    name = str(tensor.dtype).removeprefix("torch.")
    return StoredTensor(name, tuple(tensor.shape), tuple(tensor.stride()), offset)


def packed(tensors: Mapping[str, torch.Tensor], offset: int) -> tuple[dict[str, StoredTensor], int]:
    """Return places for tensors one after another from byte `offset` on, and the offset behind the
    last. Each tensor is contiguous (row-major); each offset after the first is a multiple of
    `ALIGN`."""
    places = {}
    for name, tensor in tensors.items():
        places[name] = StoredTensor(
            str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), _dense(tensor), offset
        )
        offset = align_up(offset + tensor.numel() * tensor.element_size(), ALIGN)
    return places, offset


def unit_places(sizes: Iterable[int], offset: int) -> tuple[list[StoredUnit], int]:
    """Return places for units of `sizes` bytes one after another from byte `offset` on, and the
    offset behind the last; each offset after the first is a multiple of `ALIGN`."""
    units = []
    for nbytes in sizes:
        units.append(StoredUnit(offset, nbytes))
        offset = align_up(offset + nbytes, ALIGN)
    return units, offset


def view(address: int, place: StoredTensor) -> torch.Tensor:
    """Return the tensor at `place` in a master that is mapped at `address`, without a copy. It may
    be written to only while the master is being filled."""
    import torch

    dtype = getattr(torch, place.dtype)
    last = sum((n - 1) * s for n, s in zip(place.shape, place.stride, strict=True))
    nbytes = (last + 1) * dtype.itemsize if prod(place.shape) else 0
    if not nbytes:
        return torch.empty(place.shape, dtype=dtype)
    flat = host_tensor(address + place.offset, nbytes)
    return flat.view(dtype).as_strided(place.shape, place.stride)


def fits(place: StoredTensor, tensor: torch.Tensor) -> bool:
    """True if the tensor stored at `place` can be copied to `tensor` as it is."""
    return place.shape == tuple(tensor.shape) and f"torch.{place.dtype}" == str(tensor.dtype)


def encoded(table: MasterTable) -> bytes:
    """Return the bytes of the table for the end of a master."""
    data = msgspec.msgpack.encode(table)
    return data + LENGTH.pack(len(data))


def decoded(memory: memoryview) -> MasterTable:
    """Return the table at the end of a master. Raise `OddMaster` if it cannot be read."""
    try:
        (length,) = LENGTH.unpack_from(memory, len(memory) - LENGTH.size)
        start = len(memory) - LENGTH.size - length
        return msgspec.msgpack.decode(memory[start : start + length], type=MasterTable)
    except (struct.error, msgspec.DecodeError, ValueError) as error:
        raise OddMaster(str(error)) from None


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides in elements that the tensor would have if it were contiguous."""
    strides, step = [], 1
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
