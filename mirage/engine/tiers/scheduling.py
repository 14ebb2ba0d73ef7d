"""Memory below an engine's device, as its scheduler uses it; without a pool it does nothing."""

from __future__ import annotations

from typing import Any

from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.queues import EngineQueues
from mirage.engine.tiers.engine_tiers import EngineTiers
from mirage.tiers.contract import Medium


class SchedulerTiers:
    """Use that the scheduler makes of the engine's tiers between two steps. If `tiers` is None, no
    call does anything."""

    def __init__(self, tiers: EngineTiers | None, queues: EngineQueues) -> None:
        self._tiers, self._queues = tiers, queues

    @property
    def there(self) -> bool:
        """True if there is a pool below the device."""
        return self._tiers is not None and not self._tiers.left

    def watch(self, blocks: ElasticBlocks, window: int) -> None:
        """From now on store the content that `blocks` are about to lose. `window` is the number of
        blocks at the head of the free queue that are stored ahead, as they may be taken soon."""
        if self._tiers is not None:
            self._tiers.watch(blocks, self._queues, window)

    def harvest(self) -> None:
        """Take back blocks whose copies have ended, and let the `TierManager` begin a new step."""
        if self._tiers is not None:
            self._tiers.manager.begin_step()
            if self._tiers.stores is not None:
                self._tiers.stores.harvest()
            self._tiers.leave_if_lost()

    def leave_if_lost(self) -> None:
        """Give back the memory of a pool that is lost."""
        if self._tiers is not None:
            self._tiers.leave_if_lost()

    def copied(self) -> bool:
        """Wait for copies of blocks to the pool, which keep these blocks from requests; True if
        there were any."""
        stores = self._tiers.stores if self._tiers is not None else None
        return stores is not None and stores.drain()

    def demote(self, extents: list[int], *, asleep: bool) -> None:
        """Copy the cached content of extents that are about to retire to the pool; if no step is
        about to run (`asleep`), more of it, and wait for the copies."""
        if self._tiers is not None:
            self._tiers.demote(extents, asleep=asleep)

    @property
    def awaited(self) -> bool:
        """True while a request waits for the pool, or blocks are on their way up or down."""
        tiers = self._tiers
        return tiers is not None and (
            tiers.manager.waiting or self._queues.loads or tiers.manager.has_pending_work()
        )

    def loaded_tokens(self, request: str) -> int:
        """Return the number of tokens that a starting request has loaded, and note that it has
        started."""
        return 0 if self._tiers is None else self._tiers.manager.arrived(request)

    def counters(self) -> dict[str, Any]:
        """Return the counts of the tiers below the device, as fields of `Counters`; empty without
        tiers."""
        if self._tiers is None:
            return {}
        counts = self._tiers.counts
        return {
            "tokens_loaded": counts.tokens_saved,
            **{f"tokens_from_{medium}": counts.tokens_from[medium] for medium in Medium},
            "kv_bytes_up": counts.bytes_up,
            "kv_bytes_down": counts.bytes_down,
            "failed_loads": counts.failed_loads,
            "late_loads": counts.late_loads,
            "saved_s": counts.saved_s,
        }
