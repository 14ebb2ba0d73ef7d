"""Plan of an exchange of layers and experts given away: all unmapping comes before all mapping.
Pure.

A resident layer has memory of its own for all but its *cold* experts. There are as many *spare
frames* as each layer has cold experts; some cold experts are in one. A streamed layer has no memory
but its slot's. From three layers of four experts, one of each cold, to one layer remapped:

    layer 0    rest e0 e1 e2 --             --
    layer 1    rest e0 e1 -- e3             rest e0 e1 e2 e3
    layer 2    rest e0 -- e2 e3      ==>    --

    frame      e3 of layer 0                (none)
    slot       (none)                       rest e0 e1 e2 e3 of layer 0, then of 2, in turn

    unmap    LayerPart(0, e3 rest e0 e1 e2), LayerPart(2, rest e0 e2 e3)
    load     LayerPart(1, e2)
    rings    [0, 2]
    spare    0

Since all unmapping comes first, at no moment is more held than the larger of before and after. From
layers to other layers `transition` moves less. `ExpertStreamer` in `experts` applies the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mirage.streaming.expert_layout import ExpertLayout, Span
from mirage.streaming.residency import Expert


@dataclass(frozen=True)
class GivenAway:
    """Layers or experts that are given away; never both at the same time."""

    rings: Sequence[Sequence[int]] = ()
    """The streamed layers of each slot."""
    cold: Mapping[int, Collection[int]] = field(default_factory=dict)
    """Experts without memory of their own, by layer; each layer with experts has equally many."""
    framed: Collection[Expert] = ()
    """Cold experts that are in spare frames."""
    absent: bool = False
    """True if no layer has any memory."""

    @property
    def experts(self) -> int:
        """Number of cold experts of each layer."""
        return max(map(len, self.cold.values()), default=0)

    def away(self, layer: int) -> bool:
        """True if a layer has no memory of its own: it is in a slot, or absent."""
        return self.absent or any(layer in ring for ring in self.rings)


@dataclass(frozen=True)
class LayerPart:
    """Part of one layer's range."""

    layer: int
    spans: Sequence[Span]


@dataclass(frozen=True)
class Exchange:
    """Steps of a change of layers, in their order. Old slots and spare frames end before anything
    is loaded."""

    unmap: Sequence[LayerPart]
    load: Sequence[LayerPart]
    """Parts of layers that are mapped, and copied from their masters."""
    rings: Sequence[Sequence[int]]
    """Layers of each new slot."""
    spare: int
    """Number of new spare frames, all empty."""


def exchange(
    layout: ExpertLayout, layers: int, layer_bytes: int, now: GivenAway, to: GivenAway
) -> Exchange:
    """Return the steps from the state `now` to the state `to`. At least one of the two states gives
    experts away, and in `to` the spare frames are empty.

    `layer_bytes` is the size in bytes of the range of each of the `layers` layers.
    """
    unmap, load = list[LayerPart](), list[LayerPart]()
    for layer in range(layers):
        framed = _spans(layout, [one.number for one in now.framed if one.layer == layer])
        own = _more(layout, layer, layer_bytes, now, to)
        if framed or own:
            unmap.append(LayerPart(layer, [*framed, *own]))
        if missing := _more(layout, layer, layer_bytes, to, now):
            load.append(LayerPart(layer, missing))
    return Exchange(unmap, load, to.rings, to.experts)


def _more(
    layout: ExpertLayout, layer: int, layer_bytes: int, one: GivenAway, other: GivenAway
) -> list[Span]:
    """Return the ranges that a layer has of its own under `one` and not under `other`."""
    cold = one.cold.get(layer, ())
    if one.away(layer):
        return []
    if other.away(layer):
        return layout.outside(cold, layer_bytes)
    return _spans(layout, [number for number in other.cold.get(layer, ()) if number not in cold])


def _spans(layout: ExpertLayout, numbers: Collection[int]) -> list[Span]:
    return [span for number in sorted(numbers) for span in layout.spans(number)]
