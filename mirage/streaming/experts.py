"""Layer streamer that can also give away experts, and loads them when a step routes to them.

An expert's parameters are a slice of each of a few tensors, whole pages each. Cold experts of
resident layers are unmapped: an access to them faults. `routed` is called right before a layer's
experts and puts those that the step routes to in place (`residency`). Layers and experts are never
given away at the same time, but one set can turn into the other in one call, which at no moment
holds more than the larger of both.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext

from mirage.streaming.compute import Compute
from mirage.streaming.exchange import Exchange, GivenAway, LayerPart, exchange
from mirage.streaming.expert_layout import ExpertLayout, Span
from mirage.streaming.replicas import Replicas, wishes
from mirage.streaming.residency import Expert, Residency
from mirage.streaming.routing import OBSERVE_CALLS, RoutingCounts
from mirage.streaming.transfer import Frame, LayerFrame, LayerStreamer, RingSlot, TransferError
from mirage.streaming.transition import FromPool, NewSlot, streamed_rings
from vmm.driver import Driver, Page, VmmError
from vmm.pages import PagePool

SMOOTHING = 0.1
LOOK_EVERY = 32
"""One of so many steps observes routing while no expert is away, because observing costs a wait."""


class ExpertStreamer(LayerStreamer):
    """Streamer of one model's cold experts. Not thread-safe: one engine thread calls `set` between
    steps and `routed` within them."""

    def __init__(
        self,
        driver: Driver,
        pool: PagePool,
        layers: Sequence[LayerFrame],
        compute: Compute,
        layout: ExpertLayout,
        *,
        chunk_bytes: int | None = None,
        absent: bool = False,
    ) -> None:
        super().__init__(driver, pool, layers, compute, chunk_bytes=chunk_bytes, absent=absent)
        self.layout = layout
        self.residency = Residency(RoutingCounts(layout.layers, layout.count))
        self.load_s = 0.0
        """Seconds of the calling thread for each expert that a step has to load, smoothed; 0 while
        unknown. On a GPU that thread does not wait for the copy, whose time is not in them."""
        self.expert_bytes_loaded = 0
        self.replicas: Replicas | None = None
        """Copies of cold experts that are faster to read than host memory; None if there is no
        peer."""
        self.replicas_loaded = 0
        """Number of loads from those copies since the start, or since `forget`."""
        self._steps, self._looks = 0, False
        self._spent_s = 0.0
        self._observed: list[float] = []
        self._observed_at = 0
        self._spare: list[Frame] = []
        """Spare frames without an expert."""
        self._loaded, self._near_loaded = driver.event(), driver.event()
        self._pages = layout.nbytes // driver.page_bytes

    @property
    def experts(self) -> int:
        """Number of experts of each layer that are given away."""
        return self.residency.given

    def pages(self, remapped: int, experts: int) -> int:
        """Return the number of pages behind all layers, slots and spare frames if `remapped` layers
        or `experts` experts of each layer are given away."""
        away = experts * (len(self.layout.layers) - 1) * self._pages
        return (len(self.layers) - remapped) * self.frame_pages - away

    def forget(self) -> None:
        """Forget everything that was counted and observed. No expert may be away."""
        assert not self.experts
        self.residency = Residency(RoutingCounts(self.layout.layers, self.layout.count))
        self.expert_bytes_loaded = self.replicas_loaded = self._observed_at = 0
        self._steps, self._looks = 0, False
        self._observed = []

    def observed(self) -> list[float]:
        """Return `RoutingCounts.routed` as it was at most `OBSERVE_CALLS` observed steps ago; empty
        before so many were observed."""
        calls = self.residency.routing.calls
        if calls >= self._observed_at + OBSERVE_CALLS:
            self._observed, self._observed_at = self.residency.routing.routed(), calls
        return self._observed

    def spent_s(self) -> float:
        """Return the seconds that steps have spent on mapping experts since the last call, without
        waits for copies."""
        spent, self._spent_s = self._spent_s, 0.0
        return spent

    # -- in a step ----------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a step. Raise `TransferError` if layers are absent."""
        super().begin()
        self._steps += 1
        self._looks = self._steps % LOOK_EVERY == 0

    @property
    def looks(self) -> bool:
        """True if this step's layers have to report the experts that they route to.

        They report in every step once experts are away, else in one of `LOOK_EVERY` steps: where
        routing is computed on a device, reading it means waiting for the device.
        """
        return self.experts > 0 or self._looks

    def routed(self, index: int, numbers: Collection[int]) -> None:
        """Count that a step routes to these experts of layer `index`, put missing ones in place,
        and let the layer, which is about to call them, wait for their loads."""
        routing = self.residency.routing
        routing.seen(index, numbers)
        if self.residency.given:
            self._fetch(index, numbers)
            if index == routing.layers[0] and routing.calls % OBSERVE_CALLS == 0:
                self._wish()

    def _fetch(self, index: int, numbers: Collection[int]) -> None:
        start = time.perf_counter()
        leave, load = self.residency.route(index, numbers)
        if not load:
            return
        # The router's result has been waited for: no step reads what leaves, and no copy writes it.
        for expert in leave:
            self._spare.append(self._unmap(self._part(expert)))
        for expert in load:
            self._map(self._part(expert), self._spare.pop())
        self._load(load)
        waits = time.perf_counter()
        self.compute.wait(self._loaded)
        self.compute.wait(self._near_loaded)
        self._spent_s += waits - start
        self.expert_bytes_loaded += len(load) * self.layout.nbytes
        took = (time.perf_counter() - start) / len(load)
        self.load_s += (took - self.load_s) * (SMOOTHING if self.load_s else 1.0)

    def _load(self, experts: Sequence[Expert]) -> None:
        """Enqueue the copies of these experts, each from the memory that is fastest to read."""
        near = self.replicas.stream if self.replicas else self.copies
        with self.replicas.lent() if self.replicas else nullcontext[Mapping[Expert, int]]({}) as at:
            for expert in experts:
                layer, spans = self.layers[expert.layer], self.layout.spans(expert.number)
                source = at.get(expert)
                if source is None:
                    self._copy_spans(layer, spans)
                    continue
                self.replicas_loaded += 1
                for offset, nbytes in spans:
                    near.copy(layer.range.address + offset, source, nbytes)
                    source += nbytes
            near.record(self._near_loaded)
        self.copies.record(self._loaded)

    def _wish(self) -> None:
        if self.replicas is not None:
            self.replicas.wish(wishes(self.residency))

    # -- between steps ------------------------------------------------------------------

    def set(self, remapped: int, slots: int, experts: int = 0) -> None:
        """Change to `remapped` layers given away as `LayerStreamer.set` does and with its errors,
        or to `experts` experts given away, in total, of each layer that has some. Raises
        `TransferError` for both at the same time."""
        slots = slots if remapped else 0
        self._check_experts(remapped, experts)
        if experts == self.experts == 0:
            super().set(remapped, slots)
            return
        self._check(remapped, slots)
        if (remapped, experts) == (self.layers_remapped, self.experts):
            return
        cold = self.residency.chosen(experts)
        absent = remapped == len(self.layers)
        to = GivenAway(streamed_rings(self._order, remapped, slots), cold, absent=absent)
        change = exchange(self.layout, len(self.layers), self.frame_bytes, self._given(), to)
        more = self.pages(remapped, experts) - self.pages(self.layers_remapped, self.experts)
        self._wait_for_all()
        fresh = self.pool.take(max(0, more), "layer")
        try:
            left = self._exchange(change, fresh)
        except VmmError as error:
            raise TransferError(f"experts were left half moved: {error}") from error
        self.residency.give(cold)
        self.layers_remapped, self.stream_slots = remapped, slots
        if self.absent:
            self.arriving.clear()
        if left:
            self.pool.give(left)
        self._wish()

    def _check_experts(self, remapped: int, experts: int) -> None:
        if remapped and experts:
            raise TransferError(f"{remapped} layers and {experts} experts: one of both can go")
        if not 0 <= experts <= self.layout.most:
            raise TransferError(f"{experts} experts: 0 to {self.layout.most} of each layer can go")

    def _given(self) -> GivenAway:
        rings = [[layer.index for layer in slot.ring] for slot in self.slots]
        residency = self.residency
        return GivenAway(rings, residency.cold, residency.framed, self.absent)

    def _wait_for_all(self) -> None:
        """Block until no step reads and no copy writes any layer."""
        self.compute.wait_for_steps()
        self.copies.synchronize()
        if self.replicas is not None:
            self.replicas.stream.synchronize()

    def _exchange(self, change: Exchange, fresh: list[Page]) -> list[Page]:
        """Carry the exchange out with `fresh` pages besides those that are held; return the pages
        left over."""
        pages = [*fresh, *(page for frame in self._spare for page in frame)]
        for part in change.unmap:
            pages += self._unmap(part)
        pages += self._end_slots()
        for part in change.load:
            self._bring(part, pages)
        self.slots = [self._begin_slot(ring, pages) for ring in change.rings]
        self._spare = [_take(pages, self._pages) for _ in range(change.spare)]
        return pages

    def _end_slots(self) -> list[Page]:
        pages: list[Page] = []
        for slot in self.slots:
            for layer in slot.ring:
                layer.range.unback(0, self.frame_bytes)
                layer.slot = None
            pages += slot.frame
        return pages

    def _begin_slot(self, ring: Sequence[int], pages: list[Page]) -> RingSlot:
        self.arriving -= {self.layers[index] for index in ring}
        new = NewSlot(ring, kept=None, frame=FromPool(0), content=None)
        return self._make_slot(new, _take(pages, self.frame_pages))

    def _bring(self, part: LayerPart, pages: list[Page]) -> None:
        """Map a part of a resident layer, and begin to load it."""
        layer = self.layers[part.layer]
        self._map(part, _take(pages, sum(n for _, n in part.spans) // self.driver.page_bytes))
        self._copy_spans(layer, part.spans)
        self.copies.record(layer.ready)
        self.arriving.add(layer)

    # -- parts of a layer ---------------------------------------------------------------

    def _part(self, expert: Expert) -> LayerPart:
        return LayerPart(expert.layer, self.layout.spans(expert.number))

    def _map(self, part: LayerPart, frame: Frame) -> None:
        rest = list(frame)
        for offset, nbytes in part.spans:
            count = nbytes // self.driver.page_bytes
            self.layers[part.layer].range.back(offset, rest[:count])
            rest = rest[count:]

    def _unmap(self, part: LayerPart) -> Frame:
        home = self.layers[part.layer].range
        return [page for span in part.spans for page in home.unback(*span)]

    def _copy_spans(self, layer: LayerFrame, spans: Iterable[Span]) -> None:
        for offset, nbytes in spans:
            self._copy_part(layer, offset, min(nbytes, layer.nbytes - offset))

    def check_integrity(self) -> None:
        """Raise `TransferError` unless exactly the parts that should have memory have it, each its
        own."""
        if not self.experts:
            super().check_integrity()
            return
        pages = [page for frame in self._spare for page in frame]
        for layer in self.layers:
            framed = {e.number for e in self.residency.framed if e.layer == layer.index}
            cold = self.residency.cold.get(layer.index, set())
            if not framed <= cold or (cold and len(cold) != self.experts):
                raise TransferError(f"layer {layer.index}: {framed} framed of {cold} cold experts")
            spans = self.layout.outside(cold - framed, self.frame_bytes)
            if layer.range.backed_in(0, self.frame_bytes) != sum(nbytes for _, nbytes in spans):
                raise TransferError(f"layer {layer.index}: more or less is mapped than is local")
            pages += [page for span in spans for page in layer.range.pages_at(*span)]
        if len(pages) != self.pages(0, self.experts) or len(set(pages)) != len(pages):
            raise TransferError(f"{len(pages)} pages back layers and frames, or one backs two")


def _take(pages: list[Page], count: int) -> list[Page]:
    """Remove the last `count` of `pages` and return them. Raise `TransferError` if there are
    fewer."""
    if count > len(pages):
        raise TransferError(f"{count} pages needed, {len(pages)} left")
    taken = pages[len(pages) - count :]
    del pages[len(pages) - count :]
    return taken
