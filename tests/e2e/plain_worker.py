"""vLLM's own worker for CPUs, whose linear layers use the same kernels as our engines."""

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from tests.plain_kernels import layers_like_ours


class PlainWorker(CPUWorker):
    """Worker of plain vLLM that builds its model with the kernels of our engines."""

    def load_model(self, **how: Any) -> None:
        """Load the model."""
        with layers_like_ours():
            super().load_model(**how)
