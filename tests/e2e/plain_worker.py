"""vLLM's own worker for CPUs, told only to keep linear weights plain: its kernels are ours."""

from vllm.model_executor.layers.linear import LinearBase
from vllm.v1.worker.cpu_worker import CPUWorker

LinearBase._cpu_skip_gemm_dispatch = True


class PlainWorker(CPUWorker):
    """In a process of its own, where the line above was run."""
