"""From one set of streamed layers to another: what moves where, before anything does. Pure.

Layers and slots are numbers here. Frames are reused as far as they go: best where they are, with
what they hold. A frame that holds a layer which is about to return is left to that one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Source = tuple[Literal["layer", "slot", "fresh"], int]
"""A frame by where it is now: under a resident layer, in a slot, or new from the pool."""
Spare = tuple[Source, int | None]
"""A frame that is free to be used, and the layer whose parameters it holds."""


@dataclass(frozen=True)
class SlotState:
    """A slot as it is: the layers that share it in turn, and the one that it holds."""

    ring: Sequence[int]
    target: int | None


@dataclass(frozen=True)
class NewSlot:
    """A slot as it shall be."""

    ring: Sequence[int]
    kept: int | None
    """The slot that goes on in it; None for one that begins."""
    frame: Source
    content: int | None
    """The layer of the ring that the frame holds already."""


@dataclass(frozen=True)
class LayerReturn:
    """A streamed layer that turns resident."""

    layer: int
    frame: Source
    loaded: bool
    """Whether the frame holds its parameters already."""


@dataclass(frozen=True)
class Transition:
    """In the order in which it is applied."""

    streams: Sequence[int]
    """Resident layers that are streamed from now on: each gives its frame."""
    ends: Sequence[int]
    """Slots that end."""
    leaves: Sequence[tuple[int, int]]
    """(slot, layer): layers that are not backed by that slot any more."""
    slots: Sequence[NewSlot]
    returns: Sequence[LayerReturn]
    surplus: Sequence[Source]
    """Frames for the pool."""


def transition(
    slots: Sequence[SlotState], order: Sequence[int], alpha: int, beta: int, fresh: int
) -> Transition:
    """The way from `slots` to the first alpha + beta layers of `order` in `beta` slots.

    `fresh` is the number of frames that the pool adds: as many as fewer layers are given away.
    """
    wanted = set(order[: alpha + beta]) if alpha else set()
    rings = deal(sorted(wanted), beta) if wanted else []
    kept = [_kept(slots, ring) for ring in rings]
    streamed = [layer for slot in slots for layer in slot.ring]
    leaving = [layer for layer in streamed if layer not in wanted]
    streams = sorted(wanted.difference(streamed))
    ends = [number for number in range(len(slots)) if number not in kept]
    spare: list[Spare] = [(("fresh", number), None) for number in range(fresh)]
    spare += [(("layer", layer), layer) for layer in streams]
    spare += [(("slot", number), slots[number].target) for number in ends]
    return Transition(
        streams=streams,
        ends=ends,
        leaves=[
            (number, layer)
            for number, slot in enumerate(slots)
            for layer in slot.ring
            if number not in kept or layer not in rings[kept.index(number)]
        ],
        slots=[
            _slot(slots, ring, number, spare, leaving)
            for ring, number in zip(rings, kept, strict=True)
        ],
        returns=[_return(layer, spare, leaving) for layer in sorted(leaving)],
        surplus=[frame for frame, _ in spare],
    )


def deal(layers: Sequence[int], beta: int) -> list[list[int]]:
    """The rings of `beta` slots: layers in turn, so that neighbours never share one."""
    return [list(layers[number::beta]) for number in range(beta)]


def _kept(slots: Sequence[SlotState], ring: Collection[int]) -> int | None:
    """The slot that holds a layer of `ring` and shares the most with it: its frame may stay.

    No two rings share a layer, so none keep the same slot.
    """
    holding = [number for number, slot in enumerate(slots) if slot.target in ring]
    return max(holding, key=lambda number: len(set(slots[number].ring) & set(ring)), default=None)


def _slot(
    slots: Sequence[SlotState],
    ring: Sequence[int],
    kept: int | None,
    spare: list[Spare],
    leaving: Collection[int],
) -> NewSlot:
    if kept is not None:
        return NewSlot(ring, kept, ("slot", kept), slots[kept].target)
    frame, content = _pick(spare, ring, leaving)
    return NewSlot(ring, None, frame, content)


def _return(layer: int, spare: list[Spare], leaving: Collection[int]) -> LayerReturn:
    frame, content = _pick(spare, [layer], leaving)
    return LayerReturn(layer, frame, loaded=content is not None)


def _pick(spare: list[Spare], ring: Sequence[int], leaving: Collection[int]) -> Spare:
    """A frame that holds a layer of `ring` already, else one that no layer of `leaving` is in."""
    for position, (_, content) in enumerate(spare):
        if content is not None and content in ring:
            return spare.pop(position)
    free = (at for at, (_, content) in enumerate(spare) if content not in leaving)
    frame, _ = spare.pop(next(free, -1))
    return frame, None
