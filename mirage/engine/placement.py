"""Places of a unit's parameters in its range, and their move to these places.

A unit moves together: a decoder layer, or the piece between two attentions. Its tensors stay the
same objects; their storage becomes the range's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mirage.units import align_up
from vmm.space import Range

ALIGN = 512
"""Alignment of parameters in bytes, as allocators have it, because kernels are chosen by it."""
POISON = 0xFF
"""Byte that overwrites a parameter's old place, so that a kernel which still reads there is
detected."""

Unit = list[list[torch.Tensor]]
"""Tensors of each storage of a unit; all of these move together."""


@dataclass(frozen=True)
class PlacedUnit:
    """Offsets of a unit's tensors in its address range, in bytes, by the tensors' ids."""

    home: Range
    nbytes: int
    offsets: dict[int, int]


@dataclass(frozen=True)
class Placement:
    """Place of one storage, or of the part that its tensors show, in its unit's address range.
    Bytes."""

    tensors: list[torch.Tensor]
    start: int
    """First byte of the old storage that a tensor shows."""
    offset: int
    nbytes: int

    @property
    def offsets(self) -> dict[int, int]:
        """First byte of each tensor in the range, by the tensor's id. It is right only until the
        tensors move."""
        seen = (tensor for tensor in self.tensors if tensor.numel())
        return {id(t): self.offset + _span(t)[0] - self.start for t in seen}


def placements_of(unit: Unit) -> tuple[list[Placement], int]:
    """Return the places of a unit's storages and their total size in bytes."""
    offset, placements = 0, []
    for tensors in unit:
        offset = align_up(offset, ALIGN)
        spans = [_span(tensor) for tensor in tensors if tensor.numel()]
        start, end = min(s for s, _ in spans), max(e for _, e in spans)
        placements.append(Placement(tensors, start, offset, end - start))
        offset += end - start
    return placements, offset


def planned(home: Range, unit: Unit) -> PlacedUnit:
    """Return the offsets of a unit in its range, before it moves there; its size is at least one
    byte."""
    placements, nbytes = placements_of(unit)
    offsets = {key: at for placement in placements for key, at in placement.offsets.items()}
    return PlacedUnit(home, max(nbytes, 1), offsets)


def moved(placement: Placement, home: Range, *, copies: bool) -> torch.Tensor:
    """Point the tensors of one storage to their place in the range, and poison their old place,
    which is returned.

    Without `copies` nothing is written to the range, which need not have memory.
    """
    tensors = placement.tensors
    whole = torch.empty(0, dtype=torch.uint8, device=tensors[0].device)
    whole.set_(tensors[0].untyped_storage())  # type: ignore[call-overload]
    old = whole[placement.start : placement.start + placement.nbytes]
    if copies:
        home.tensor(placement.offset, placement.nbytes).copy_(old)
    for tensor in tensors:
        if not tensor.numel():
            continue
        start, end = _span(tensor)
        flat = home.tensor(placement.offset + start - placement.start, end - start)
        tensor.data = flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    return old.fill_(POISON)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte, and the end, of the part of its storage that `tensor` shows; strided
    views include their gaps."""
    size = tensor.element_size()
    last = int(sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)))
    start = int(tensor.storage_offset()) * size
    return start, start + (last + 1) * size
