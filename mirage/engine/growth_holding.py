"""Hold of a running request that lacks KV blocks, where vLLM would preempt a request.

One `schedule()` of vLLM's calls this code at three points, in this order:

1. For each running request it asks `KVCacheManager.allocate_slots` for blocks. None means that
   there are none; then `HoldingKVCacheManager` counts the missing blocks, and `StepHold` decides.
2. Before it preempts a request for that, it asks `Scheduler._request_blocks_can_be_freed`. False
   leaves this request, and the running ones after it, out of the step, and none is preempted.
3. It admits waiting requests, unless `Scheduler._pause_state` forbids it: they would take the
   blocks that the held request lacks.

Both answers follow from `StepBounds.held`. A request is held until memory comes or a refusal;
`GrowthHold` limits the time.

A waiting request may hold blocks as well: those that it has loaded. vLLM lets a request load only
if there are free blocks for all its tokens. If there are too few when it has loaded, and no request
runs that could free any, it is held as a running one is. After a refusal the newest request that
has loaded gives its blocks up, unless it is the first of those that hold blocks.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import RequestStatus

from mirage.engine.step_hold import StepHold


class HoldingKVCacheManager(KVCacheManager):
    """vLLM's KV cache manager, which reports the blocks that a running request lacked."""

    hold: StepHold

    @staticmethod
    def of(manager: Any, hold: StepHold) -> None:
        """Turn vLLM's `manager` into one that reports missing KV blocks to `hold`."""
        manager.__class__ = HoldingKVCacheManager
        manager.hold = hold

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        *args: Any,
        num_lookahead_tokens: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Override vLLM's: allocate as it does, and tell the hold of the blocks that a request
        lacks.

        A waiting request that holds no blocks and finds none simply waits. A running one gets
        nothing while memory is recalled: vLLM then preempts the request of its own choice, and asks
        again. If blocks are being copied to the pool, the copies are waited for, and vLLM's
        allocation is tried once more.
        """
        running = request.status == RequestStatus.RUNNING
        if running and self.hold.recalls():
            return None
        allocate = partial(
            super().allocate_slots,
            request,
            num_new_tokens,
            *args,
            num_lookahead_tokens=num_lookahead_tokens,
            **kwargs,
        )
        blocks = allocate()
        begun = running or self.hold.stuck(request)
        if blocks is None and begun and self.hold.copied():
            blocks = allocate()
        if blocks is None and begun:
            # A waiting one gets blocks for all its tokens or none.
            left = 0 if running else request.num_tokens - request.num_computed_tokens
            missing = self._missing(request, max(num_new_tokens, left), num_lookahead_tokens)
            if missing > 0:
                self.hold.lacks(missing, self.block_pool.get_num_free_blocks())
        return blocks

    def _missing(self, request: Any, new_tokens: int, lookahead_tokens: int) -> int:
        """Return the number of blocks that a request needs beyond the free ones; 0 or less if these
        suffice.

        The need is vLLM's own count for a request that can find nothing more in the prefix cache.
        Free blocks include those that newcomers have to leave free.
        """
        most = self.max_model_len
        computed = min(request.num_computed_tokens, most)
        needed = self.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=min(computed + new_tokens + lookahead_tokens, most),
            new_computed_blocks=self.empty_kv_cache_blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=request.num_computed_tokens,
            num_local_computed_tokens=request.num_computed_tokens,
            num_tokens_main_model=computed + new_tokens,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return int(needed) - int(self.block_pool.get_num_free_blocks())
