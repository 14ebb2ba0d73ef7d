"""One engine's memory below its device: the pool, the copies, and their counts."""

from __future__ import annotations

from collections.abc import Iterator

from mirage.control.kv_link import bytes_in, spare_bytes
from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.engine_times import EngineTimes
from mirage.engine.queues import EngineQueues
from mirage.engine.tiers.copier import Copier
from mirage.engine.tiers.counts import TierCounts
from mirage.engine.tiers.device_blocks import DeviceBlocks
from mirage.engine.tiers.expert_replicas import ExpertReplicas, keep_on_peers
from mirage.engine.tiers.manager import TierManager
from mirage.engine.tiers.offers import Offers
from mirage.engine.tiers.pool_memory import PoolMemory, borrowing
from mirage.engine.tiers.recent import Recent
from mirage.engine.tiers.stores import Stores
from mirage.tiers.contract import Medium, Pool
from mirage.tiers.patience import Patience
from mirage.tiers.prefetch import fitting
from vmm.driver import Stream

DEMOTE_S = 0.1
"""Seconds of the link that the content of retiring extents may take at a time while requests wait
for the next step."""
ASLEEP_S = 2.0
"""Seconds of the link that the content of retiring extents may take at a time while no step is
about to run."""


class EngineTiers:
    """Tiers of one engine. Made by the worker, used by the scheduler too."""

    def __init__(
        self, memory: DeviceMemory, times: EngineTimes, pool: Pool, block_bytes: int
    ) -> None:
        self.pool, self.block_bytes = pool, block_bytes
        self.counts = TierCounts()
        self.recent = Recent()
        self.offers = Offers(self.recent)
        self.manager = TierManager(
            pool,
            self.counts,
            Patience(),
            self.recent,
            pending_work=lambda: self.stores is not None and self.stores.busy,
            token_s=lambda: times.token_cost.token_s,
        )
        self._memory, self._times = memory, times
        borrower = borrowing(pool, memory.driver)
        self._places = PoolMemory(pool, memory.driver, block_bytes, borrower)
        self._copier: Copier | None = None
        self.stores: Stores | None = None
        self.replicas: ExpertReplicas | None = None
        self._watched: tuple[ElasticBlocks, EngineQueues] | None = None
        self.left = False
        """True once the pool was lost, and its memory was given back."""

    @property
    def copier(self) -> Copier:
        """Copier of blocks; it can be used once the KV buffer is made."""
        if self._copier is None:
            assert self._memory.kv is not None
            runs = DeviceBlocks(self._memory.kv).runs
            driver, compute = self._memory.driver, self._memory.compute
            self._copier = Copier(
                driver,
                compute,
                runs,
                self._places.use,
                self._places.let_go,
                self._stream,
                self._places.media,
            )
        return self._copier

    def keep_experts(self, weights: bytes) -> None:
        """Keep copies of cold experts on peers, if there are peers: see `keep_on_peers`."""
        giver, settings = self._memory.giver, self._memory.settings
        if giver is not None and Medium.PEER in self._places.media:
            self.replicas = keep_on_peers(giver, settings, weights)

    def _stream(self, medium: Medium) -> Stream:
        """Return a new stream to a medium. A peer has a link of its own."""
        if medium is not Medium.PEER:
            return self._memory.driver.stream()
        return self._memory.driver.stream_at(self.pool.bytes_per_s(medium))

    def watch(self, blocks: ElasticBlocks, queues: EngineQueues, window: int) -> None:
        """From now on store the content that `blocks` are about to lose, and have content for the
        requests in `queues` brought up from the disk to host memory. `window` is the number of
        blocks at the head of the free queue that are stored ahead, as they may be taken soon."""
        self._watched = blocks, queues
        self.stores = Stores(
            blocks,
            self.pool,
            self.copier,
            self.counts,
            self.recent,
            self.offers,
            window=window,
            block_bytes=self.block_bytes,
        )

    def spare_bytes(self) -> float:
        """Return the bytes of KV blocks that the link to host memory can carry in this step beside
        streamed layers. Infinite if no layer streams, or while T_T (seconds to load a layer) or T_c
        (seconds to compute a layer in a step) is unknown."""
        memory = self._memory
        streamed = memory.layers_remapped + memory.stream_slots if memory.streaming else 0
        return spare_bytes(
            layers=memory.layers,
            streamed=streamed,
            layer_bytes=memory.layer_bytes,
            load_s=self._times.layer_load_s,
            compute_s=self._times.layer_compute_s,
        )

    def rise(self) -> None:
        """Ask the pool, at the end of schedule(), to bring blocks up from the disk, for the next
        requests first."""
        if self._watched is not None and self.manager.may_rise:
            blocks, queues = self._watched
            carried = fitting(1, self.spare_bytes(), self.block_bytes)
            self.manager.rise(queues.unloaded(), blocks.is_cached, carried)

    def loading(self) -> Iterator[str]:
        """Return the names of requests that wait for the content of their blocks, in the
        scheduler's order."""
        return iter(()) if self._watched is None else self._watched[1].loading()

    def demote(self, extents: list[int], *, asleep: bool) -> None:
        """Copy the content of extents to the pool before they retire, as much as the link carries
        in `DEMOTE_S` seconds. If no step is about to run (`asleep`), as much as in `ASLEEP_S`
        seconds, and wait for the copies."""
        if self.stores is None:
            return
        most = bytes_in(
            ASLEEP_S if asleep else DEMOTE_S,
            layer_bytes=self._memory.layer_bytes,
            load_s=self._times.layer_load_s,
        )
        self.stores.demote(extents, most)
        if asleep:
            self.stores.drain()

    def leave_if_lost(self) -> None:
        """Give back the memory of a lost pool, because another server makes another one.

        While copies are in progress it does nothing, and a later call gives the memory back; these
        copies are valid, because what was pinned stays as it is.
        """
        busy = self._copier is not None and self._copier.busy
        if not self.left and not busy and self.pool.lost:
            self.left = True
            self._places.close()
            self.pool.close()

    def close(self) -> None:
        """Leave the pool, after the copies in progress. A second call does nothing."""
        if self.stores is not None:
            self.stores.drain()
        if self.replicas is not None:
            assert self._memory.giver is not None
            self._memory.giver.replicas = None
            self.replicas.close()
        if self._copier is not None:
            self._copier.close()
        self._places.close()
        self.pool.close()
