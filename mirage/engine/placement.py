"""Places of a unit's parameters inside its range, and their way there.

A unit moves together: a decoder layer, or what lies between two attentions. Its tensors
stay the same objects; their storage becomes the range's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mirage.units import align_up
from vmm.space import Range

ALIGN = 512
"""Alignment of parameters in bytes, as allocators have it: kernels are chosen by it."""
POISON = 0xFF
"""Byte left where a parameter was, so that a kernel which still reads there is seen."""

Unit = list[list[torch.Tensor]]
"""Tensors of each storage; they move together."""


@dataclass(frozen=True)
class PlacedUnit:
    """Offsets of a unit's tensors in its address range, in bytes, by the tensors' ids."""

    home: Range
    nbytes: int
    offsets: dict[int, int]


@dataclass(frozen=True)
class Placement:
    """Offset of one storage, or of its visible part, in its layer's address range. Bytes."""

    tensors: list[torch.Tensor]
    start: int
    """The first byte of the old storage that is seen."""
    offset: int
    nbytes: int

    @property
    def offsets(self) -> dict[int, int]:
        """First byte of each tensor in the range, by its id; before they move."""
        seen = (tensor for tensor in self.tensors if tensor.numel())
        return {id(t): self.offset + _span(t)[0] - self.start for t in seen}


def placements_of(unit: Unit) -> tuple[list[Placement], int]:
    """Offsets of a unit's storages and their total size, both in bytes."""
    offset, placements = 0, []
    for tensors in unit:
        offset = align_up(offset, ALIGN)
        spans = [_span(tensor) for tensor in tensors if tensor.numel()]
        start, end = min(s for s, _ in spans), max(e for _, e in spans)
        placements.append(Placement(tensors, start, offset, end - start))
        offset += end - start
    return placements, offset


def planned(home: Range, unit: Unit) -> PlacedUnit:
    """Its place in its range, before it moves there; its size is at least one byte."""
    placements, nbytes = placements_of(unit)
    offsets = {key: at for placement in placements for key, at in placement.offsets.items()}
    return PlacedUnit(home, max(nbytes, 1), offsets)


def moved(placement: Placement, home: Range, *, copies: bool) -> torch.Tensor:
    """Let the tensors of one storage look at their place in the range, and poison what they left.

    Without `copies` nothing is written there, where no memory need be.
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
    """First byte and end of what `tensor` sees of its storage; strided views keep their gaps."""
    size = tensor.element_size()
    last = int(sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)))
    start = int(tensor.storage_offset()) * size
    return start, start + (last + 1) * size
