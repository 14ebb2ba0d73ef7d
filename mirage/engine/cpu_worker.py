"""vLLM's CPU worker with parameters and KV cache in memory that can move."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from mirage.engine import seeded
from mirage.engine.elastic_worker import ElasticWorker
from mirage.engine.layouts import layouts_on_cpu
from mirage.engine.ranks import count_uncompiled


class MirageCPUWorker(ElasticWorker, CPUWorker):
    """Worker on host memory."""

    def load_model(self, **kwargs: Any) -> None:
        """Load the model as `ElasticWorker` does, with fixes of vLLM on CPUs: for the ranks of
        tokens in log-probabilities, LoRA adapters and draft models."""
        count_uncompiled()
        if self.vllm_config.lora_config is not None:
            # Not at the top: few engines have adapters.
            from mirage.engine.unadapted import stay_unadapted

            stay_unadapted()
        if self.vllm_config.speculative_config is not None:
            from mirage.engine.drafted import repeat_settings

            repeat_settings()
        super().load_model(**kwargs)

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """Return the KV cache layouts that can grow; see `layouts_on_cpu`."""
        layouts: list[str] = super().get_supported_kv_cache_layouts()
        if not self.mirage.settings.elastic:
            return layouts
        return layouts_on_cpu(layouts, mla=self.model_config.use_mla)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample as vLLM does, without the error that a CPU raises when a seeded request's
        generator is set back."""
        with seeded.discarded_draw_nothing(self.model_runner):
            return super().sample_tokens(grammar_output)
