"""vLLM's offloading connector over our pool; `offer.offer` names it to vLLM.

vLLM's own scheduler side decides what is looked up and loaded. Our code decides what is stored, and
moves the bytes.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
)

from mirage.engine.tiers import present
from mirage.engine.tiers.engine_tiers import EngineTiers
from mirage.engine.tiers.loads import LoadJobs
from mirage.tiers.contract import Key

Answer = tuple[int | None, bool]
"""Number of tokens that a request loads (None: ask again), and True if it loads between steps."""
ASK_AGAIN: Answer = (None, False)
COMPUTES: Answer = (0, False)


class TierSpec(OffloadingSpec):
    """Configuration from which vLLM builds the scheduler side."""

    def get_manager(self) -> OffloadingManager:
        """Return the manager of this engine's tiers."""
        return tiers_of_engine().manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Raise `NotImplementedError`: `LoadJobs` and `Stores` copy blocks without vLLM's
        handlers."""
        raise NotImplementedError("KV blocks are copied by mirage.engine.tiers")


def tiers_of_engine() -> EngineTiers:
    """Return the engine's tiers, which the worker makes before vLLM makes connectors."""
    tiers = present.tiers()
    assert tiers is not None, "connector without tiers"
    return tiers


class LazyScheduler(OffloadingConnectorScheduler):
    """Scheduler side of vLLM's offloading connector, without vLLM's stores."""

    def _build_store_jobs(self, scheduler_output: Any) -> dict[int, Any]:
        return {}

    def _build_partial_tail_store_jobs(self, scheduler_output: Any) -> dict[int, Any]:
        return {}


class TierConnector(OffloadingConnector):
    """vLLM's connector, by which an engine loads KV blocks from its pool. vLLM makes one object for
    each role, scheduler and worker, both in the engine's process."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.tiers = tiers_of_engine()
        self.loads: LoadJobs | None = None
        """Load jobs of the worker; None in the scheduler's object."""
        if role == KVConnectorRole.SCHEDULER:
            scheduler: Any = self.connector_scheduler
            scheduler.__class__ = LazyScheduler
        else:
            self.connector_worker = None
            self.loads = LoadJobs(self.tiers)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Return None: any layout of our buffer will do, because whole blocks are copied."""
        return None

    # -- the scheduler's end --------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        """Ask the pool for a request's blocks when it enters the queue, long before the scheduler
        reaches it."""
        super().on_new_request(request)
        self._seek(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Answer:
        """Return the number of tokens to load, as vLLM does. For a limited time a request waits
        (`ASK_AGAIN`) for blocks that are being stored, or that other requests load; then it
        computes them. A request that was preempted asks the pool anew, also for tokens of its
        answer."""
        manager, name = self.tiers.manager, request.request_id
        if manager.put_off(name, self._keys(request, num_computed_tokens)):
            return ASK_AGAIN
        self._seek(request)
        manager.reached(name)
        tokens, later = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if tokens is not None or manager.waits(name):
            return tokens, later
        # Another request loads the same blocks and is late: it is not waited for any longer.
        self.scheduler._req_status[name].update_num_hit_chunks(num_computed_tokens)
        return COMPUTES

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note that a request has its blocks: a load begins, or nothing is to be loaded."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self.tiers.manager.admitted(request.request_id, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Store blocks that vLLM's present schedule() has evicted or that the next may evict, and
        ask the pool to bring blocks up. vLLM calls it at the end of schedule()."""
        meta = super().build_connector_meta(scheduler_output)
        stores = self.tiers.stores
        if stores is not None:
            stores.harvest()
            stores.rescue()
            stores.look_ahead()
        self.tiers.rise()
        return meta

    def get_kv_connector_stats(self) -> None:
        """Return none of vLLM's statistics, because its front end does not know this connector: see
        `TierCounts`."""
        return

    def shutdown(self) -> None:
        """Shut down as vLLM does, and leave the pool."""
        super().shutdown()
        self.tiers.close()

    def _seek(self, request: Any) -> None:
        keys = self._keys(request)
        if keys:
            self.tiers.manager.seek(request.request_id, keys)

    def _keys(self, request: Any, after: int = 0) -> list[Key]:
        """Return the keys of a request's whole blocks, without those of its first `after`
        tokens."""
        if request.skip_reading_prefix_cache:
            return []
        status = self.scheduler._req_status[request.request_id]
        status.update_offload_keys()
        groups = zip(self.scheduler.config.kv_group_configs, status.group_states, strict=True)
        return [
            Key(key)
            for group, state in groups
            for key in state.offload_keys[after // group.tokens_per_chunk :]
        ]

    # -- the worker's end -----------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Do nothing: our buffer is known already."""

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Wait for loads if vLLM flushes jobs, which happens only in a reset of everything."""
        if kv_connector_metadata.jobs_to_flush:
            self._loads.wait()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin the loads of this step."""
        self._loads.begin(self._connector_metadata)

    def wait_for_save(self) -> None:
        """Do nothing: steps save nothing."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return the requests whose loads have ended. Those whose loads failed have to compute
        their blocks."""
        ended, failed = self._loads.ended()
        return KVConnectorTransferResults(
            finished_sending=set(), finished_recving=ended, failed_recving=failed
        )

    def build_connector_worker_meta(self) -> Any:
        """Return the message to the scheduler side about ended jobs; None if no job has ended."""
        return None if self.loads is None else self.loads.said()

    @property
    def _loads(self) -> LoadJobs:
        assert self.loads is not None, "not the worker's end"
        return self.loads
