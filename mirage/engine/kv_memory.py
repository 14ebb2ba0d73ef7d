"""KV memory as an engine's scheduler sees it: its extents, its demand, and its moves."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from mirage.control.demand import Demand
from mirage.control.engine.fence import Fence
from mirage.control.engine.pace import Pace
from mirage.control.engine.reconcile import Reconciler
from mirage.control.engine.wants import Wants
from mirage.control.reporting import Cached
from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.memory_worker import MemoryWorker
from mirage.engine.queues import EngineQueues
from mirage.engine.step_counts import StepCounts
from mirage.engine.tiers.scheduling import SchedulerTiers
from mirage.engine.turn import EngineTurn
from mirage.geometry import asleep_bytes, footprint, gained_extents
from mirage.protocol import Allotment, ModelShape
from mirage.units import ceil_div


class KVExtents(NamedTuple):
    """Numbers of an engine's KV extents and blocks."""

    backed: int
    used: int
    """Extents with at least one block of a request, and, if there are any, that of vLLM's null
    block."""
    usable_blocks: int
    """Blocks that requests may be given, vLLM's null block included."""


class BookedMemory(NamedTuple):
    """Device memory of an engine by its books: bytes, layers given away, slots, and experts of each
    layer given away."""

    held_bytes: int
    layers_remapped: int
    stream_slots: int
    experts: int


class KVMemory:
    """KV memory of policy static: all of vLLM's blocks always have memory."""

    retiring = False
    """True while retiring extents wait for their requests to free them."""
    asleep = False
    """True if the engine was told to sleep, and holds only memory that it cannot give."""
    fills = False
    """True if the engine woke, and another round would bring more of its memory immediately."""

    def __init__(self, pool: Any, shape: ModelShape) -> None:
        """Initialise; `pool` is vLLM's block pool."""
        self._pool, self._shape = pool, shape

    def extents(self) -> KVExtents:
        """Return the numbers of extents and blocks. All extents have memory; used ones are counted
        as if blocks were given in order."""
        blocks = self._pool.num_gpu_blocks
        used = blocks - self._pool.get_num_free_blocks()
        per_extent = self._shape.extent_blocks
        return KVExtents(ceil_div(blocks, per_extent), ceil_div(used, per_extent), blocks)

    def booked(self) -> BookedMemory:
        """Return the device memory that the engine holds."""
        return BookedMemory(footprint(self._shape, 0, self.extents().backed), 0, 0, 0)

    @property
    def free_blocks(self) -> int:
        """Number of blocks that requests may be given now."""
        return int(self._pool.get_num_free_blocks())

    def demand(self) -> Demand:
        """Return the KV blocks that are wanted: none, since nothing moves."""
        return Demand()

    def cached(self) -> Cached:
        """Return no cached prefixes: they matter only if an engine can give memory."""
        return Cached()

    def aim(self, allotment: Allotment) -> bool:
        """Return False, since an allotment changes nothing here. A subclass adopts it, and returns
        True if it is newer than the present one."""
        return False

    def recalls(self) -> bool:
        """Return False. A subclass returns True if a running request must be preempted although
        blocks are free.

        That is so after a recall: the allotment is smaller than the memory of running requests."""
        return False

    def spill(self) -> None:
        """Do nothing. A subclass lets suspended requests give up the KV that the end of the turn
        asked for."""

    def reconcile(self) -> bool:
        """Return False, since no memory moves. A subclass moves memory towards the allotment, and
        returns True if any moved."""
        return False

    def leave_free(self) -> None:
        """Do nothing. A subclass tells vLLM the number of blocks that a newly admitted request
        leaves free for running ones."""

    def preempted(self, request: Any) -> None:
        """Do nothing. A subclass notes a request that is about to lose its blocks."""


class ElasticKVMemory(KVMemory):
    """KV memory that grows and shrinks by allotments, with or without tiers below it."""

    def __init__(
        self,
        worker: MemoryWorker,
        manager: Any,
        blocks: ElasticBlocks,
        shape: ModelShape,
        wants: Wants,
        *,
        turn: EngineTurn,
        fence: Fence,
        queues: EngineQueues,
        tiers: SchedulerTiers,
        counts: StepCounts,
    ) -> None:
        """Initialise; `blocks` are those of vLLM's KV cache `manager`."""
        super().__init__(manager.block_pool, shape)
        self._worker, self._manager, self.blocks = worker, manager, blocks
        self._turn, self._queues, self._tiers = turn, queues, tiers
        self._wants, self._counts = wants, counts
        self._keeps = worker.settings.kept != "nothing"
        self.reconciler = Reconciler(
            worker,
            shape,
            blocks,
            fence,
            time.monotonic,
            pace=Pace(worker.settings.move_s, self._steps_soon),
            demote=self._demote,
            may_demote=self._may_demote,
            at_rest=lambda: fence.idle and not queues.running,
        )

    # -- what there is, and what is wanted ------------------------------------------------

    def extents(self) -> KVExtents:
        """Return the numbers of extents that have memory and of those in use, and of usable
        blocks."""
        book = self.blocks.book
        return KVExtents(book.backed_extents(), book.busy_extents(), book.usable_blocks)

    def booked(self) -> BookedMemory:
        """Return the device memory by the books: bytes as of the worker's last answer; layers,
        slots and experts as if the worker had already carried out all orders to it."""
        books = self.reconciler.books
        return BookedMemory(
            self.reconciler.held_bytes, books.layers_remapped, books.stream_slots, books.experts
        )

    def demand(self) -> Demand:
        """Return the KV blocks that running and waiting requests want."""
        blocks, queues = self.blocks, self._queues
        idle = blocks.num_free_blocks + blocks.only_pinned()
        starting = self._wants.groups.to_start(queues.to_compute(), queues.may_begin)
        used = max(0, blocks.book.usable_blocks - 1 - idle)
        return self._wants.demand(used, queues.running, starting)

    def cached(self) -> Cached:
        """Return the number of cached blocks that no request uses now, the number that requests
        reused since the engine started, and True if there is a tier below."""
        blocks = self.blocks
        return Cached(blocks.idle_cached_blocks(), blocks.blocks_again, self._tiers.there)

    @property
    def retiring(self) -> bool:  # type: ignore[override]
        """True while retiring extents wait for their requests to free them."""
        return bool(self.blocks.book.retiring)

    @property
    def asleep(self) -> bool:  # type: ignore[override]
        """True if the engine was told to sleep, and holds only memory that it cannot give."""
        held_bytes = self.reconciler.held_bytes
        return self.reconciler.asleep and held_bytes == asleep_bytes(self._shape)

    # -- moves ----------------------------------------------------------------------------

    def aim(self, allotment: Allotment) -> bool:
        """Adopt an allotment and make one round towards it; False, without a round, if it is not
        newer than the present one."""
        newer = self.reconciler.aim(allotment)
        self._turn.rest(self.reconciler.rests)
        self.fills = self.reconciler.wakes
        return newer

    def recalls(self) -> bool:
        """True if a running request must be preempted. Blocks that only finished copies hold are
        freed first."""
        if not self.reconciler.recalls(self._queues.running):
            return False
        return not self._tiers.copied() or self.reconciler.recalls(self._queues.running)

    def reconcile(self) -> bool:
        """Make one round towards the allotment, unless it is reached; True if anything moved."""
        if self.reconciler.reconciled:
            return False
        moved = self.reconciler.reconcile()
        self._turn.rest(self.reconciler.rests)
        self.fills = moved and self.reconciler.wakes
        return moved

    def leave_free(self) -> None:
        """Set vLLM's watermark: the blocks that a newly admitted request leaves free for running
        ones (`Wants.left_free`). Do nothing if `EngineSettings.kept` is "nothing"."""
        if self._keeps:
            reconciler, queues = self.reconciler, self._queues
            self._manager.watermark_blocks = self._wants.left_free(
                queues.running,
                reconciler.books.usable_extents,
                reconciler.open_extents,
                self.demand,
                lent=reconciler.lent,
                lent_extents=gained_extents(self._shape, reconciler.books.layers_remapped),
                answered=self._counts.answered(queues.begun),
            )

    def _steps_soon(self) -> bool:
        """True if requests wait for a step, and the engine may make it now."""
        resting = self.reconciler.rests
        return not resting and not self._queues.idle and self._turn.may_step

    def _may_demote(self) -> bool:
        """True if extents may retire. With a tier below, it is False between schedule() and its
        step, because blocks do not yet hold the content that they are named by."""
        return not self._tiers.there or not self._worker.planned

    def _demote(self, extents: list[int]) -> None:
        self._tiers.demote(extents, asleep=not self._steps_soon())

    # -- requests that lose their blocks --------------------------------------------------

    def spill(self) -> None:
        """Let suspended requests give up KV, which may then go to the tier below."""
        self._turn.spill(self, self._shape.extent_bytes // self._shape.extent_blocks)

    @property
    def begun(self) -> int:
        """Number of requests that have begun, and that a draining turn has to finish."""
        return self._queues.begun

    @property
    def used_blocks(self) -> int:
        """Number of KV blocks in use, which no other request can be given."""
        return self.blocks.book.usable_blocks - int(self.blocks.num_free_blocks)

    def give_up_newest(self) -> bool:
        """Preempt the newest request that has loaded and not gone on since, or if there is none the
        newest that runs; False if there is neither. See `EngineQueues.give_up_newest`."""
        return self._queues.give_up_newest()

    def preempted(self, request: Any) -> None:
        """Forget names of blocks that the request was given in this schedule().

        When it preempts by priority, vLLM may preempt a request that it has just scheduled. Its new
        blocks are named by the content that they would have had, and that is not computed now: a
        request that found them would read something else.
        """
        coordinator = self._manager.coordinator
        groups = coordinator.get_blocks(request.request_id)
        for manager, blocks in zip(coordinator.single_type_managers, groups, strict=True):
            self.blocks.forget(blocks[request.num_computed_tokens // manager.block_size :])
