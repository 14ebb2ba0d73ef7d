"""vLLM's GPU worker with its parameters and its KV cache in memory that can move."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from mirage.engine.worker import BLOCK_OUTERMOST, ElasticWorker


class MirageGPUWorker(ElasticWorker, Worker):
    """On an NVIDIA GPU. Steps are enqueued, so memory moves behind vLLM's own fence."""

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """Those of the attention backend in which a block's layers lie together."""
        layouts: list[str] = super().get_supported_kv_cache_layouts()
        if not self.mirage.elastic:
            return layouts
        fitting = [layout for layout in layouts if layout in BLOCK_OUTERMOST]
        if not fitting:
            raise RuntimeError(
                f"the attention backend lays KV blocks out as {', '.join(layouts)}, and none of "
                f"{', '.join(BLOCK_OUTERMOST)}: choose another by engine_args.attention_backend, "
                "FLASH_ATTN or TRITON_ATTN for one"
            )
        return fitting
