"""A layer streamer that can also give away experts, and fetches them when they are routed to.

An expert's parameters are a slice of each of a few tensors, whole pages each. Cold experts of
resident layers are unmapped: who touches them faults. `routed` stands right before a layer's
experts are called and puts those that the step routes to in place (`residency`). Layers and
experts are never given away at the same time, but one set can turn into the other in one call,
which at no moment holds more than the larger of both.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirage.streaming.compute import Compute
from mirage.streaming.replicas import Replicas, wishes
from mirage.streaming.residency import Expert, Residency
from mirage.streaming.routing import OBSERVE_CALLS, RoutingCounts
from mirage.streaming.transfer import Frame, LayerFrame, LayerStreamer, TransferError
from mirage.streaming.transition import transition
from vmm.driver import Driver, Page, VmmError
from vmm.pages import PagePool

SMOOTHING = 0.1
LOOK_EVERY = 32
"""Steps of which one is looked at while no expert is away, where looking costs a wait."""


class Piece(NamedTuple):
    """Of one tensor: where its first expert begins in the layer's range, and bytes of each."""

    start: int
    nbytes: int


@dataclass(frozen=True)
class ExpertLayout:
    """Where the experts of each of `layers` lie: in all of them at the same offsets."""

    layers: tuple[int, ...]
    count: int
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Of one expert."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def most(self) -> int:
        """Experts of each layer that can be given away: one stays."""
        return self.count - 1

    def spans(self, number: int) -> list[tuple[int, int]]:
        """(offset, bytes) of an expert's slices."""
        return [(piece.start + number * piece.nbytes, piece.nbytes) for piece in self.pieces]

    def outside(self, numbers: Collection[int], end: int) -> list[tuple[int, int]]:
        """(offset, bytes) of all that lies before `end` and is not of these experts."""
        out, at = [], 0
        for start, nbytes in sorted(span for number in numbers for span in self.spans(number)):
            if start > at:
                out.append((at, start - at))
            at = start + nbytes
        return [*out, (at, end - at)] if end > at else out


class ExpertStreamer(LayerStreamer):
    """Not thread-safe: one engine thread. `set` between steps only, `routed` within them."""

    def __init__(
        self,
        driver: Driver,
        pool: PagePool,
        layers: Sequence[LayerFrame],
        compute: Compute,
        layout: ExpertLayout,
        *,
        chunk_bytes: int | None = None,
    ) -> None:
        super().__init__(driver, pool, layers, compute, chunk_bytes=chunk_bytes)
        self.layout = layout
        self.residency = Residency(RoutingCounts(layout.layers, layout.count))
        self.load_s = 0.0
        """Seconds to load one expert while a step waits, smoothed; 0 while unknown."""
        self.expert_bytes_loaded = 0
        self.replicas: Replicas | None = None
        """Copies of cold experts that are quicker to read, if there are any."""
        self.replicas_loaded = 0
        """Experts that were loaded from those."""
        self._steps, self._looks = 0, False
        self._spent_s = 0.0
        self._observed: list[float] = []
        self._observed_at = 0
        self._spare: list[Frame] = []
        """Frames with no expert in them."""
        self._loaded, self._near_loaded = driver.event(), driver.event()
        self._pages = layout.nbytes // driver.page_bytes

    @property
    def experts(self) -> int:
        """Experts of each layer that are given away."""
        return self.residency.given

    def pages(self, alpha: int, experts: int) -> int:
        """Pages behind all layers, slots and spare frames."""
        away = experts * (len(self.layout.layers) - 1) * self._pages
        return (len(self.layers) - alpha) * self.frame_pages - away

    def forget(self) -> None:
        """All that was counted and observed; no expert is away."""
        assert not self.experts
        self.residency = Residency(RoutingCounts(self.layout.layers, self.layout.count))
        self.expert_bytes_loaded = self.replicas_loaded = self._observed_at = 0
        self._steps, self._looks = 0, False
        self._observed = []

    def observed(self) -> list[float]:
        """`RoutingCounts.routed`, not older than some steps; empty while too little was seen."""
        calls = self.residency.routing.calls
        if calls >= self._observed_at + OBSERVE_CALLS:
            self._observed, self._observed_at = self.residency.routing.routed(), calls
        return self._observed

    def spent_s(self) -> float:
        """Seconds in which steps mapped experts, waits left out, since this was last asked."""
        spent, self._spent_s = self._spent_s, 0.0
        return spent

    # -- in a step ----------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins."""
        self._steps += 1
        self._looks = self._steps % LOOK_EVERY == 0

    @property
    def looks(self) -> bool:
        """True if this step's layers are to say whom they route to.

        In every step once experts are away. Until then in one of `LOOK_EVERY`: where routing is
        computed on a device, to see it is to wait for that.
        """
        return self.experts > 0 or self._looks

    def routed(self, index: int, numbers: Collection[int]) -> None:
        """Layer `index` is about to compute with these experts: let it wait for them."""
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
        # Who routed has been waited for, so no step reads what leaves, and no copy writes it.
        for expert in leave:
            self._spare.append(self._unmap(expert))
        for expert in load:
            self._map(expert, self._spare.pop())
        self._load(load)
        waits = time.perf_counter()
        self.compute.wait(self._loaded)
        self.compute.wait(self._near_loaded)
        self._spent_s += waits - start
        self.expert_bytes_loaded += len(load) * self.layout.nbytes
        took = (time.perf_counter() - start) / len(load)
        self.load_s += (took - self.load_s) * (SMOOTHING if self.load_s else 1.0)

    def _load(self, experts: Sequence[Expert]) -> None:
        """Enqueue their copies, each from where it is quickest to read."""
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

    def set(self, alpha: int, beta: int, experts: int = 0) -> None:
        """As `LayerStreamer.set`, or give away `experts` of each layer that has some."""
        self._check(alpha, experts)
        if experts == self.experts == 0:
            super().set(alpha, beta)
            return
        if (alpha, experts) == (self.alpha, self.experts):
            return
        more = self.pages(alpha, experts) - self.pages(self.alpha, self.experts)
        fresh = self.pool.take(max(0, more), "layer")
        self.compute.wait_for_steps()
        self.copies.synchronize()
        if self.replicas is not None:
            self.replicas.stream.synchronize()
        try:
            left = self._change(alpha, beta, experts, fresh)
        except VmmError as error:
            raise TransferError(f"experts were left half moved: {error}") from error
        if left:
            self.pool.give(left)
        self._wish()

    def _check(self, alpha: int, experts: int) -> None:
        if alpha and experts:
            raise TransferError(f"alpha {alpha} and {experts} experts: one of both")
        if not 0 <= experts <= self.layout.most:
            raise TransferError(f"{experts} experts: 0 to {self.layout.most} of each layer can go")

    def _change(self, alpha: int, beta: int, experts: int, pages: list[Page]) -> list[Page]:
        """With `pages` besides what is held; those that are left over."""
        pages = pages + self._empty_frames()
        moved = self._to_layers(alpha, beta, pages) if alpha else self._to_experts(experts, pages)
        self.alpha, self.beta = alpha, beta if alpha else 0
        for _ in range(experts):
            self._spare.append(_take(moved, self._pages))
        return moved

    def _empty_frames(self) -> list[Page]:
        frames = [*self._spare, *map(self._unmap, self.residency.framed)]
        self.residency.framed.clear()
        self._spare = []
        return [page for frame in frames for page in frame]

    def _to_experts(self, experts: int, pages: list[Page]) -> list[Page]:
        """Give experts, then let layers that were streamed, and experts, return."""
        streamed = {layer.index for slot in self.slots for layer in slot.ring}
        away, back = self.residency.give(experts)
        for expert in away:
            if expert.layer not in streamed:
                pages += self._unmap(expert)
        pages += self._end_slots()
        for index in sorted(streamed):
            self._return(self.layers[index], pages)
        for expert in back:
            self._map(expert, _take(pages, self._pages))
            layer = self.layers[expert.layer]
            self._copy_spans(layer, self.layout.spans(expert.number))
            self._arrives(layer)
        return pages

    def _to_layers(self, alpha: int, beta: int, pages: list[Page]) -> list[Page]:
        """Layers whole, the streamed ones in slots: all experts return, but theirs into slots."""
        change = transition([], self._order, alpha, beta, 0)
        for index in change.streams:
            layer = self.layers[index]
            for offset, nbytes in self._present(layer):
                pages += layer.range.unback(offset, nbytes)
            self.arriving.discard(layer)
        _, back = self.residency.give(0)
        for expert in back:
            layer = self.layers[expert.layer]
            if layer.index in change.streams:
                continue
            self._map(expert, _take(pages, self._pages))
            self._copy_spans(layer, self.layout.spans(expert.number))
            self._arrives(layer)
        self.slots = [
            self._make_slot(replace(new, kept=None, content=None), _take(pages, self.frame_pages))
            for new in change.slots
        ]
        return pages

    def _end_slots(self) -> list[Page]:
        pages: list[Page] = []
        for slot in self.slots:
            for layer in slot.ring:
                layer.range.unback(0, self.frame_bytes)
                layer.slot = None
            pages += slot.frame
        self.slots = []
        return pages

    def _return(self, layer: LayerFrame, pages: list[Page]) -> None:
        """A streamed layer is resident again, without its cold experts."""
        spans = self._present(layer)
        for offset, nbytes in spans:
            layer.range.back(offset, _take(pages, nbytes // self.driver.page_bytes))
        self._copy_spans(layer, spans)
        self._arrives(layer)

    # -- one expert ---------------------------------------------------------------------

    def _present(self, layer: LayerFrame) -> list[tuple[int, int]]:
        """Parts of a resident layer's range that are its own: all but cold experts."""
        return self.layout.outside(self.residency.cold.get(layer.index, ()), self.frame_bytes)

    def _map(self, expert: Expert, frame: Frame) -> None:
        rest = list(frame)
        for offset, nbytes in self.layout.spans(expert.number):
            count = nbytes // self.driver.page_bytes
            self.layers[expert.layer].range.back(offset, rest[:count])
            rest = rest[count:]

    def _unmap(self, expert: Expert) -> Frame:
        home = self.layers[expert.layer].range
        spans = self.layout.spans(expert.number)
        return [page for span in spans for page in home.unback(*span)]

    def _copy_spans(self, layer: LayerFrame, spans: Iterable[tuple[int, int]]) -> None:
        for offset, nbytes in spans:
            self._copy_part(layer, offset, min(nbytes, layer.nbytes - offset))

    def _arrives(self, layer: LayerFrame) -> None:
        self.copies.record(layer.ready)
        self.arriving.add(layer)

    def check_integrity(self) -> None:
        """Raise `TransferError` unless exactly what should be there is backed, once each."""
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
    """The last `count` of `pages`, which has them no more."""
    if count > len(pages):
        raise TransferError(f"{count} pages needed, {len(pages)} left")
    taken = pages[len(pages) - count :]
    del pages[len(pages) - count :]
    return taken
