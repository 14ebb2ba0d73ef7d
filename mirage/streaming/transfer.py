"""Async Transfer Engine: decoder layers at fixed addresses, some of them streamed.

Every layer has a permanent address range. A *resident* layer is backed by its own frame (one
layer's worth of pages). *Streamed* layers, as many as are given away and one more for each slot,
share the frames of the slots: a slot's frame is mapped into the ranges of all layers of its ring
(aliasing), and holds one of them at a time. While a layer of the ring computes, the other slot
receives the next one (paper: double buffering). Copies come from a host master that is never
written again, so nothing is ever copied back.

Order, for each streamed layer: its copy has completed before it runs (`before`); it has run before
its slot is overwritten (`after`). A forward pass that was aborted leaves other layers in the slots;
`before` detects that and loads on demand.

If all layers are given away they are *absent*: none has a frame, there is no slot, and no step may
run. The masters stay, so that any other set can follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage.streaming.compute import Compute
from mirage.streaming.layer_sets import nested
from mirage.streaming.transition import (
    FrameSource,
    FromPool,
    InSlot,
    NewSlot,
    SlotState,
    Transition,
    UnderLayer,
    transition,
)
from vmm.driver import Driver, Event, Page, VmmError
from vmm.pages import PagePool
from vmm.space import Range

Frame = list[Page]
"""Pages of one layer, in address order."""


class TransferError(Exception):
    """Error: the requested set of streamed layers is not possible, a step begins without layers, or
    the memory of layers is not what it should be. Unless the message says so, nothing was
    changed."""


@dataclass(eq=False)
class LayerFrame:
    """One decoder layer: its fixed range, its master copy, and what backs it now."""

    index: int
    range: Range
    master: int
    """Host address of the master copy."""
    nbytes: int
    ready: Event
    slot: RingSlot | None = None


@dataclass(eq=False)
class RingSlot:
    """Slot: a frame, and its ring, the layers that share it in the order in which they run."""

    frame: Frame
    ring: list[LayerFrame]
    ready: Event
    done: Event
    target: LayerFrame | None = None
    following: dict[LayerFrame, LayerFrame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        turned = self.ring[1:] + self.ring[:1]
        self.following = dict(zip(self.ring, turned, strict=True))


class LayerStreamer:
    """Streamer of one model's layers. Not thread-safe: one engine thread changes the streamed
    layers between steps (`set`), and calls `before` and `after` around each layer in a step.

    All `layers` have address ranges of the same size. `set` raises `vmm` errors for memory that
    cannot be had.
    """

    def __init__(
        self,
        driver: Driver,
        pool: PagePool,
        layers: Sequence[LayerFrame],
        compute: Compute,
        *,
        chunk_bytes: int | None = None,
        absent: bool = False,
    ) -> None:
        """Initialise for layers that all have a frame already, or, if they are `absent`, none.

        With `chunk_bytes` a layer is copied in pieces of that size. A link serves streams in turn,
        one copy at a time: other copies of a step, such as its inputs, then wait for a piece and
        not for a whole layer. (Priorities do not help: torch's streams have the lowest, which is
        ours as well.)
        """
        self.driver, self.pool, self.compute = driver, pool, compute
        self.chunk_bytes = chunk_bytes
        self.layers = list(layers)
        self.frame_bytes = layers[0].range.nbytes
        self.frame_pages = self.frame_bytes // driver.page_bytes
        self.layers_remapped, self.stream_slots = len(self.layers) if absent else 0, 0
        self.slots: list[RingSlot] = []
        self.arriving: set[LayerFrame] = set()
        self.copies = driver.stream()
        self.bytes_streamed = 0
        self._order = nested(len(self.layers))

    @property
    def streaming(self) -> bool:
        """True if any layer needs `before` and `after`."""
        return bool(self.slots or self.arriving)

    @property
    def absent(self) -> bool:
        """True if no layer has a frame."""
        return self.layers_remapped == len(self.layers)

    def begin(self) -> None:
        """Begin a step. Raise `TransferError` if layers are absent."""
        if self.absent:
            raise TransferError("a step begins, and no layer of the model has memory")

    def before(self, index: int) -> None:
        """Let layer `index`, which is about to run, wait until its parameters are loaded. If its
        slot holds another layer, their load is enqueued first."""
        layer = self.layers[index]
        slot = layer.slot
        if slot is None:
            if layer in self.arriving:
                self.compute.wait(layer.ready)
                self.arriving.discard(layer)
            return
        if slot.target is not layer:
            self._load_slot(slot, layer)
        self.compute.wait(slot.ready)

    def after(self, index: int) -> None:
        """Note that layer `index` was issued: the next layer of its ring is loaded into its slot
        once layer `index` has run."""
        layer = self.layers[index]
        slot = layer.slot
        if slot is None or len(slot.ring) == 1:
            return
        self.compute.record(slot.done)
        self._load_slot(slot, slot.following[layer])

    def set(self, remapped: int, slots: int) -> None:
        """Change to `remapped` layers in total whose frames are given away, and to `slots` slots.

        Call it between steps only. All layers and no slot means that the layers are absent. Freed
        frames go to the pool; needed frames come from it. Layers that become resident are loaded
        asynchronously; `before` waits for them.

        It waits until issued steps have run. Raises `TransferError` if that set is impossible or
        was left half changed, and `GrantExceeded` or `OutOfMemory` if frames are not granted or not
        free.
        """
        slots = slots if remapped else 0
        if (remapped, slots) == (self.layers_remapped, self.stream_slots):
            return
        self._check(remapped, slots)
        missing = max(0, self.layers_remapped - remapped)
        held, order = self._held(), self._order
        change = transition(held, order, remapped, slots, missing, absent=self.absent)
        if self.absent:
            self._come_back(change)
        else:
            self._change(change, missing * self.frame_pages)
        self.layers_remapped, self.stream_slots = remapped, slots

    def _come_back(self, change: Transition) -> None:
        """Bring absent layers back: each is loaded while the next gets its memory. After an error
        none is back."""
        frames: list[Frame] = []

        def frame() -> Frame:
            frames.append(self.pool.take(self.frame_pages, "layer"))
            return frames[-1]

        try:
            for new in change.slots:
                self.slots.append(self._make_slot(new, frame()))
            for one in change.returns:
                self._make_resident(self.layers[one.layer], frame(), one.loaded)
        except VmmError:
            self._leave_again(frames)
            raise

    def _leave_again(self, frames: Sequence[Frame]) -> None:
        self.copies.synchronize()
        for layer in self.layers:
            if layer.range.backed_in(0, self.frame_bytes):
                layer.range.unback(0, self.frame_bytes)
            layer.slot = None
        for frame in frames:
            self.pool.give(frame)
        self.slots = []
        self.arriving.clear()

    def _change(self, change: Transition, missing: int) -> None:
        """Change the streamed layers, with `missing` pages from the pool."""
        # A step that was issued reads every layer; of copies only those are awaited that write
        # what is unmapped.
        self.compute.wait_for_steps()
        fresh, size = self.pool.take(missing, "layer"), self.frame_pages
        try:
            self._apply(change, [fresh[n : n + size] for n in range(0, len(fresh), size)])
        except VmmError as error:
            # Some layers have nothing behind them now: no step may run any more.
            raise TransferError(f"the streamed set was left half changed: {error}") from error

    def _check(self, remapped: int, slots: int) -> None:
        absent = (remapped, slots) == (len(self.layers), 0)
        if min(remapped, slots) < 0 or (remapped and not slots and not absent):
            raise TransferError(
                f"{remapped} layers remapped, {slots} slots: streamed layers need a slot"
            )
        if remapped + slots > len(self.layers):
            raise TransferError(
                f"{remapped} layers remapped and {slots} slots: more than {len(self.layers)} layers"
            )

    def _held(self) -> list[SlotState]:
        return [
            SlotState(
                [layer.index for layer in slot.ring], slot.target.index if slot.target else None
            )
            for slot in self.slots
        ]

    def close(self) -> None:
        """End the copy stream. The ranges stay as they are."""
        self.copies.synchronize()
        self.copies.close()

    def check_integrity(self) -> None:
        """Raise `TransferError` unless every layer is backed by the frame that it should have."""
        seen: set[Page] = set()
        if self.absent:
            self._check_absent()
            return
        for layer in self.layers:
            pages = layer.range.pages_at(0, self.frame_bytes)
            if layer.slot is not None:
                if list(pages) != layer.slot.frame:
                    raise TransferError(f"layer {layer.index} is not backed by its slot")
                continue
            if seen & set(pages):
                raise TransferError(f"layer {layer.index} shares pages with another layer")
            seen |= set(pages)
        slots = [page for slot in self.slots for page in slot.frame]
        if seen & set(slots) or len(set(slots)) != len(slots):
            raise TransferError("a slot shares pages with a resident layer")

    def _check_absent(self) -> None:
        if self.slots or self.arriving:
            raise TransferError("layers are absent, and some stream or arrive")
        for layer in self.layers:
            if layer.slot is not None or layer.range.backed_in(0, self.frame_bytes):
                raise TransferError(f"layer {layer.index} is absent, and has memory")

    # -- changing the set ---------------------------------------------------------------

    def _apply(self, change: Transition, fresh: list[Frame]) -> None:
        """Unmap, then map: at no moment does a frame back both a layer that leaves it and one that
        gets it."""
        frames: dict[FrameSource, Frame] = {FromPool(n): frame for n, frame in enumerate(fresh)}
        frames |= {InSlot(number): slot.frame for number, slot in enumerate(self.slots)}
        surplus = set(change.surplus)
        for index in change.streams:
            frame = self._unmap_layer(index)
            if UnderLayer(index) in surplus:  # it is freed while the next is unmapped
                self.pool.give(frame)
            else:
                frames[UnderLayer(index)] = frame
        for number in change.ends:  # a copy that is under way there comes to its end
            self.slots[number].ready.wait()
        for left in change.leaves:
            self.layers[left.layer].range.unback(0, self.frame_bytes)
            self.layers[left.layer].slot = None
        self.slots = [self._make_slot(new, frames[new.frame]) for new in change.slots]
        for one in change.returns:
            self._make_resident(self.layers[one.layer], frames[one.frame], one.loaded)
        for source in (one for one in change.surplus if one in frames):
            self.pool.give(frames[source])

    def _unmap_layer(self, index: int) -> Frame:
        """Wait for a copy into the layer, if there is one, then unmap it and return its frame."""
        layer = self.layers[index]
        layer.ready.wait()
        self.arriving.discard(layer)
        return layer.range.unback(0, self.frame_bytes)

    def _make_slot(self, new: NewSlot, frame: Frame) -> RingSlot:
        """Return a new slot, on the frame of an old one that it keeps, or on another frame."""
        before = None if new.kept is None else self.slots[new.kept]
        ring = [self.layers[index] for index in new.ring]
        ready = before.ready if before else self.driver.event()
        slot = RingSlot(frame, ring, ready=ready, done=self.driver.event())
        for layer in ring:
            if before is None or layer not in before.ring:
                layer.range.back(0, frame)
            layer.slot = slot
        if new.content is None:
            self._load_slot(slot, ring[0])
        else:
            slot.target = self.layers[new.content]
        return slot

    def _make_resident(self, layer: LayerFrame, frame: Frame, loaded: bool) -> None:
        layer.slot = None
        layer.range.back(0, frame)
        if not loaded:
            self._copy(layer, layer.ready)
            self.arriving.add(layer)

    # -- copies -------------------------------------------------------------------------

    def _load_slot(self, slot: RingSlot, layer: LayerFrame) -> None:
        slot.target = layer
        with self.copies.together():
            self.copies.wait_for(slot.done)
            self._copy(layer, slot.ready)

    def load(self, layer: LayerFrame) -> None:
        """Enqueue the copy of a layer's parameters from their master into its range."""
        self._copy_part(layer, 0, layer.nbytes)

    def _copy_part(self, layer: LayerFrame, offset: int, nbytes: int) -> None:
        step, there, here = self.chunk_bytes or nbytes, layer.range.address, layer.master
        end = offset + nbytes
        with self.copies.together():
            for n in range(offset, end, step):
                self.copies.copy(there + n, here + n, min(step, end - n))

    def _copy(self, layer: LayerFrame, arrival: Event) -> None:
        with self.copies.together():
            self.load(layer)
            self.copies.record(arrival)
        self.bytes_streamed += layer.nbytes
