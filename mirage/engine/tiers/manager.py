"""vLLM's offloading manager over the pool: which blocks of a request's prefix are below the device.

The state of a request is its `Fetch`.
"""

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
from mirage.engine.tiers.fetch import ASKS, CLOSED, Fetch, FetchEvent, FetchState
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
    """Places from which blocks are loaded; no places if the pool has lost one."""

    keys: Sequence[Key]
    places: Sequence[BlockPlace]


class TierManager(OffloadingManager):
    """Manager that asks the pool, and waits for its answer as long as `Patience` allows.

    `pending_work` returns True if blocks are on their way down, `token_s` the seconds that a
    computed token adds to a step.
    """

    def __init__(
        self,
        pool: Pool,
        counts: TierCounts,
        patience: Patience,
        recent: Recent,
        *,
        pending_work: Callable[[], bool] = lambda: False,
        token_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._counts, self._patience, self._clock = pool, counts, patience, clock
        self._recent, self._pending_work, self._token_s = recent, pending_work, token_s
        self._fetches: dict[str, Fetch] = {}
        self._prefetch = Prefetch(pool.found)
        self.waiting = False
        """True if a request has waited, for the pool or for other requests' copies, since the last
        `begin_step`."""

    def begin_step(self) -> None:
        """Note that a new step of the scheduler begins: no request has waited in it yet."""
        self.waiting = False

    def seek(self, request: str, keys: Sequence[Key]) -> None:
        """Ask the pool for the blocks of a request, named by `keys`; the pool pins those that it
        has. The first call, and the first after the request was admitted, asks for all of them. Any
        other call asks only for those that this engine has stored in the pool since the call
        before. For a request whose load has failed, or that has ended, do nothing."""
        fetch = self._of(request)
        if fetch.state in CLOSED:
            return
        new = self._recent.since(fetch.mark, keys)
        fetch.mark = self._recent.mark
        fetch.on(FetchEvent.SOUGHT)
        if new:
            self._pool.seek(request, new, rise=False)
            self._prefetch.sought(request, new)

    @property
    def may_rise(self) -> bool:
        """True if a block that requests lack may be in a tier from which it cannot be copied to the
        device, such as the disk."""
        return self._prefetch.waits

    def rise(self, queue: Iterable[str], on_device: Callable[[Key], bool], carried: float) -> None:
        """Ask the pool, once a step, to bring up blocks for requests of the `queue`, as many as the
        link has room for (`carried`). Blocks that are `on_device` stay below. See `Prefetch.next`.
        """
        for request, keys in self._prefetch.next(queue, on_device, carried).items():
            self._pool.seek(request, keys)

    # -- a request, as the scheduler comes by it ------------------------------------------

    def put_off(self, request: str, keys: Sequence[Key]) -> bool:
        """True if a block of these keys is being stored right now, and the request has not waited
        for that too long."""
        return self._recent.any_under_way(keys) and self._waits_for_others(self._of(request))

    def reached(self, request: str) -> None:
        """Note that the scheduler is about to look up the request's blocks; a request that waited
        for the pool seeks its blocks again.
        """
        self._on(request, FetchEvent.REACHED)

    def waits(self, request: str) -> bool:
        """True if a request goes on waiting when vLLM cannot tell yet what it loads."""
        fetch = self._of(request)
        return fetch.waits_itself or self._waits_for_others(fetch)

    def admitted(self, request: str, tokens: int) -> None:
        """Note that a request has memory. If it loads no tokens, it needs the pool no more."""
        fetch = self._of(request)
        fetch.put_off_s = None
        if tokens:
            fetch.tokens = tokens
        else:
            self._on(request, FetchEvent.ADMITTED)

    def loaded(self, request: str, places: Sequence[BlockPlace]) -> None:
        """Note that all blocks of a request arrived, from these places."""
        tokens = self._of(request).tokens
        self._counts.loaded(tokens, places)
        self._counts.saved_s += tokens * self._token_s()

    def load_failed(self, request: str) -> None:
        """Note that a load failed: the request's blocks are computed, and nothing is sought for it
        again."""
        self._counts.failed_loads += 1
        self._on(request, FetchEvent.FAILED)

    def arrived(self, request: str) -> int:
        """Return the number of tokens that a request has loaded, 0 if it loaded none, and note that
        it starts now."""
        fetch = self._of(request)
        tokens = fetch.tokens if fetch.state is FetchState.DONE else 0
        self._on(request, FetchEvent.STARTED)
        return tokens

    # -- vLLM's contract ----------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Note a request that entered the queue; the connector says what it seeks."""
        self._fetches.setdefault(req_context.req_id, Fetch())
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: ReqContext) -> LookupResult:
        """Return the result of a lookup of one block: HIT if it can be loaded, RETRY while it is
        worth waiting for the pool, else MISS, so that it is computed."""
        request, wanted = req_context.req_id, Key(key)
        fetch = self._of(request)
        if fetch.state not in ASKS:
            return LookupResult.MISS
        found = self._pool.found(request, wanted)
        if found is Lookup.READY:
            return LookupResult.HIT
        if found is Lookup.ABSENT:
            self._patience.waits(found, 0.0)
            return LookupResult.MISS
        if self._prefetch.refused(request, wanted):
            return LookupResult.MISS
        if found is Lookup.BELOW:
            self._prefetch.needed(request, wanted)
        return LookupResult.RETRY if self._waits_for(fetch, found) else LookupResult.MISS

    def get_load_source(self, key: Any, req_context: ReqContext) -> CacheHitSource:
        """Return the medium of a block that is about to be loaded, in vLLM's words; "unspecified"
        if the pool has lost the block."""
        try:
            (place,) = self._pool.places(req_context.req_id, [Key(key)])
        except KeyError:
            return CacheHitSource.EXTERNAL_UNSPECIFIED
        return SOURCES[place.medium]

    def prepare_load(self, keys: Collection[Any], req_context: ReqContext) -> PlacesSpec:
        """Return the places of the blocks. If the pool has lost one meanwhile, the load fails."""
        wanted = [Key(key) for key in keys]
        self._on(req_context.req_id, FetchEvent.LOADS)
        try:
            return PlacesSpec(wanted, self._pool.places(req_context.req_id, wanted))
        except KeyError:
            return PlacesSpec(wanted, [])

    def complete_load(self, keys: Collection[Any], req_context: ReqContext) -> None:
        """Note that the copies have ended, successfully or not."""
        self._on(req_context.req_id, FetchEvent.ENDED)

    def prepare_store(
        self, keys: Collection[Any], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Return None: blocks go down lazily, see `Stores`."""
        return None

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Note that a request has ended or was aborted, perhaps during its load."""
        self._on(req_context.req_id, FetchEvent.FINISHED)

    def has_pending_work(self) -> bool:
        """True if blocks are on their way down."""
        return self._pending_work()

    # -- one fetch ------------------------------------------------------------------------

    def _of(self, request: str) -> Fetch:
        """Return the fetch of a request; for one that is forgotten a new GONE one, which is not
        kept."""
        return self._fetches.get(request) or Fetch(FetchState.GONE)

    def _on(self, request: str, event: FetchEvent) -> None:
        fetch = self._of(request)
        if fetch.on(event):
            self._prefetch.left(request)
            self._pool.leave(request)
        if fetch.state is FetchState.GONE:
            self._fetches.pop(request, None)

    def _waits_for(self, fetch: Fetch, found: Lookup) -> bool:
        """True if the request goes on waiting for a block that the pool has, or may have, but
        cannot give yet (`found`). If not, its loads are late."""
        now = self._clock()
        if fetch.asked_s is None:
            fetch.asked_s = now
        if self._patience.waits(found, now - fetch.asked_s):
            fetch.on(FetchEvent.DELAYED)
            self.waiting = True
            return True
        self._counts.late_loads += not fetch.late
        fetch.late = True
        return False

    def _waits_for_others(self, fetch: Fetch) -> bool:
        """True if the request waits for copies of other requests, at most as long as for its
        own."""
        now = self._clock()
        if fetch.put_off_s is None:
            fetch.put_off_s = now
        waits = self._patience.waits(Lookup.COMING, now - fetch.put_off_s)
        self.waiting |= waits
        return waits
