"""vLLM's offloading manager over the pool: what of a request's prefix lies below the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from mirage.engine.tiers.counts import TierCounts
from mirage.engine.tiers.recent import Recent
from mirage.tiers.contract import BlockPlace, Key, Lookup, Medium, Pool
from mirage.tiers.patience import Patience
from mirage.tiers.prefetch import Prefetch

SOURCES = {
    Medium.PEER: CacheHitSource.P2P,
    Medium.HOST: CacheHitSource.HOST,
    Medium.SSD: CacheHitSource.DISK,
}


@dataclass(frozen=True)
class PlacesSpec(LoadStoreSpec):
    """Where blocks are loaded from; no places if the pool has lost one."""

    keys: Sequence[Key]
    places: Sequence[BlockPlace]


@dataclass
class _Seeking:
    """A request whose keys the pool was asked for."""

    mark: int
    """Of `Recent`, when the pool was asked."""
    asked_s: float | None = None
    """When the scheduler first reached the request."""
    loading: bool = False
    tokens: int = 0
    """That it loads."""
    late: bool = False
    """It stopped waiting."""
    finished: bool = False
    """It is over, and its load is not: nothing is remembered of it any more."""


class TierManager(OffloadingManager):
    """Asks the pool, and waits for it as long as `Patience` says.

    A request seeks from when it enters the queue until it was admitted or has loaded; what the
    pool holds for it stays where it is meanwhile.
    """

    def __init__(
        self,
        pool: Pool,
        counts: TierCounts,
        patience: Patience,
        recent: Recent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._counts, self._patience, self._clock = pool, counts, patience, clock
        self._recent = recent
        self._seeking: dict[str, _Seeking] = {}
        self._arrived: dict[str, int] = {}
        """Tokens that requests loaded which have not started since."""
        self._prefetch = Prefetch(pool.found)
        self._put_off: dict[str, float] = {}
        """Since when requests wait for copies that others began."""
        self._failed: set[str] = set()
        """Requests whose load failed: they compute."""
        self.pending_work: Callable[[], bool] = lambda: False
        self.token_s: Callable[[], float] = lambda: 0.0
        """Seconds that a computed token adds to a step."""
        self.waiting = False
        """Whether a request waits for the pool since the last `begin_step`."""

    def seek(self, request: str, keys: Sequence[Key]) -> None:
        """Ask for a request's keys: again for those that went down since it was asked."""
        if request in self._failed:
            return
        if (seeking := self._seeking.get(request)) is None:
            seeking = self._seeking[request] = _Seeking(self._recent.mark)
        else:
            keys = self._recent.since(seeking.mark, keys)
            seeking.mark = self._recent.mark
        if keys:
            self._pool.seek(request, keys, rise=False)
            self._prefetch.sought(request, keys)

    @property
    def may_rise(self) -> bool:
        """Whether anything that requests lack may lie too deep to be copied from."""
        return self._prefetch.waits

    def rise(self, queue: Iterable[str], on_device: Callable[[Key], bool], carried: float) -> None:
        """Once a step: what lies deepest comes up for the `queue`, see `Prefetch.next`."""
        for request, keys in self._prefetch.next(queue, on_device, carried).items():
            self._pool.seek(request, keys)

    def stores(self, request: str, keys: Sequence[Key]) -> bool:
        """Whether any is on its way down, and it is worth to wait for that."""
        return self._recent.any_under_way(keys) and self.waits_for_others(request)

    def waits_for_others(self, request: str) -> bool:
        """Whether a request waits on for copies that are not its own: as long as for its own."""
        since = self._put_off.setdefault(request, self._clock())
        waits = self._patience.waits(Lookup.COMING, self._clock() - since)
        self.waiting |= waits
        return waits

    def admitted(self, request: str, tokens: int) -> None:
        """It has blocks. If it loads no tokens, it needs nothing of the pool any more."""
        self._put_off.pop(request, None)
        seeking = self._seeking.get(request)
        if seeking is not None and tokens:
            seeking.tokens = tokens
        elif seeking is not None and not seeking.loading:
            self._leave(request)

    def loaded(self, request: str, places: Sequence[BlockPlace]) -> None:
        """All its blocks arrived, from these places."""
        if (seeking := self._seeking.get(request)) is not None:
            self._counts.loaded(seeking.tokens, places)
            self._counts.saved_s += seeking.tokens * self.token_s()
            if not seeking.finished:
                self._arrived[request] = seeking.tokens

    def arrived(self, request: str) -> int:
        """Tokens that it loaded since this was asked; it starts now."""
        return self._arrived.pop(request, 0)

    def load_failed(self, request: str) -> None:
        """Its blocks are computed, and nothing is sought for it again."""
        self._counts.failed_loads += 1
        seeking = self._seeking.get(request)
        if seeking is None or not seeking.finished:
            self._failed.add(request)

    def begin_step(self) -> None:
        """A new step of the scheduler."""
        self.waiting = False

    # -- vLLM's contract ----------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """It entered the queue; what it seeks, the connector says."""
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: ReqContext) -> LookupResult:
        """Whether a block can be loaded; RETRY while it is worth to wait."""
        request = req_context.req_id
        seeking = self._seeking.get(request)
        if seeking is None or request in self._failed:
            return LookupResult.MISS
        found = self._pool.found(request, Key(key))
        if found is Lookup.READY:
            return LookupResult.HIT
        if found is Lookup.ABSENT:
            self._patience.waits(found, 0.0)
            return LookupResult.MISS
        if self._prefetch.refused(request, Key(key)):
            return LookupResult.MISS
        if found is Lookup.BELOW:
            self._prefetch.needed(request, Key(key))
        return LookupResult.RETRY if self._waits(seeking, found) else LookupResult.MISS

    def get_load_source(self, key: Any, req_context: ReqContext) -> CacheHitSource:
        """The medium of a block that is about to be loaded."""
        try:
            (place,) = self._pool.places(req_context.req_id, [Key(key)])
        except KeyError:
            return CacheHitSource.EXTERNAL_UNSPECIFIED
        return SOURCES[place.medium]

    def prepare_load(self, keys: Collection[Any], req_context: ReqContext) -> PlacesSpec:
        """Where the blocks are. What the pool has lost meanwhile fails in the load."""
        wanted = [Key(key) for key in keys]
        if (seeking := self._seeking.get(req_context.req_id)) is not None:
            seeking.loading = True
        try:
            return PlacesSpec(wanted, self._pool.places(req_context.req_id, wanted))
        except KeyError:
            return PlacesSpec(wanted, [])

    def complete_load(self, keys: Collection[Any], req_context: ReqContext) -> None:
        """The copies have ended, well or not."""
        self._leave(req_context.req_id)

    def prepare_store(
        self, keys: Collection[Any], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Nothing: blocks go down lazily, see `Stores`."""
        return None

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Or was aborted, perhaps with its load under way."""
        request = req_context.req_id
        self._failed.discard(request)
        self._arrived.pop(request, None)
        self._put_off.pop(request, None)
        seeking = self._seeking.get(request)
        if seeking is None or not seeking.loading:
            self._leave(request)
        else:
            seeking.finished = True

    def has_pending_work(self) -> bool:
        """Whether blocks are on their way down."""
        return self.pending_work()

    def _leave(self, request: str) -> None:
        if self._seeking.pop(request, None) is not None:
            self._prefetch.left(request)
            self._pool.leave(request)

    def _waits(self, seeking: _Seeking, found: Lookup) -> bool:
        now = self._clock()
        if seeking.asked_s is None:
            seeking.asked_s = now
        if self._patience.waits(found, now - seeking.asked_s):
            self.waiting = True
            return True
        self._counts.late_loads += not seeking.late
        seeking.late = True
        return False
