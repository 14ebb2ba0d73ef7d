"""Stubs on a host for what vLLM's GPU worker and second model runner need of a GPU.

They need a process of their own: `put` changes vLLM and torch in all of it before an engine is
made, and `TRITON_INTERPRET=1` must be set before Triton is imported. Each stub says why it is
there. Everything else is vLLM's own code, and ours.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import second_graphs

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",
}
ROOMY = SimpleNamespace(free_memory=1 << 34, total_memory=1 << 34)
"""Snapshot of the device's memory, which vLLM only logs."""


def put() -> None:
    """Install all stubs."""
    _triton()
    _platform()
    _torch()
    _graphs()
    _attention()
    _sampling()
    _buffers()
    _worker()


def _triton() -> None:
    """Pretend a backend named "cpu", without which vLLM for CPUs has no Triton. Triton's
    interpreter needs none.
    """
    from triton.backends import backends

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))


def _platform() -> None:
    """Let the CPU platform use vLLM's Triton attention, graphs, and two steps in flight."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    check = CpuPlatform.check_and_update_config.__func__

    def checked(cls: Any, vllm_config: Any) -> None:
        sizes = vllm_config.compilation_config.cudagraph_capture_sizes
        check(cls, vllm_config)
        vllm_config.compilation_config.cudagraph_capture_sizes = sizes
        vllm_config.scheduler_config.async_scheduling = True

    def backend(cls: Any, *args: Any, **kwargs: Any) -> str:
        return AttentionBackendEnum.TRITON_ATTN.get_path()

    CpuPlatform.check_and_update_config = classmethod(checked)
    CpuPlatform.get_attn_backend_cls = classmethod(backend)
    CpuPlatform.support_static_graph_mode = classmethod(lambda cls: True)
    CpuPlatform.graph_pool_handle = classmethod(lambda cls: (0, 1))


class Stream:
    """Stand-in for a CUDA stream: all work is done when it is issued."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def wait_stream(self, other: Stream) -> None:
        pass


class Event:
    """Stand-in for a CUDA event, which has passed as soon as it is recorded."""

    def __init__(self, *, blocking: bool = False) -> None:
        pass

    def record(self, stream: Stream) -> None:
        pass

    def synchronize(self) -> None:
        pass


def _torch() -> None:
    """Stubs of torch for streams and events, for the kind of GPU, and for its free memory."""
    import torch

    steps = Stream()
    torch.cuda.Stream, torch.cuda.Event = Stream, Event
    torch.cuda.current_stream = lambda device=None: steps
    torch.cuda.set_stream = lambda stream: None
    torch.cuda.stream = nullcontext
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.accelerator.synchronize = torch.accelerator.empty_cache = lambda: None
    torch.accelerator.get_memory_info = lambda: (ROOMY.free_memory, ROOMY.total_memory)


def _graphs() -> None:
    """Let `second_graphs` capture and replay. References to tensors keep them alive, because there
    is no memory pool of graphs here.
    """
    import torch
    from vllm.compilation import breakable_cudagraph
    from vllm.utils import torch_utils

    torch.cuda.CUDAGraph, torch.cuda.graph = second_graphs.CUDAGraph, second_graphs.graph
    second_graphs.note_kernels()
    torch._C._cuda_endAllocateToPool = lambda device, pool: None
    torch_utils.weak_ref_tensor = breakable_cudagraph.weak_ref_tensor = lambda tensor: tensor
    breakable_cudagraph.weak_ref_tensors = lambda tensors: tensors


def _attention() -> None:
    """Let one program of a kernel compute each request, not 16 in parallel, because programs run
    one after the other here.
    """
    from vllm.v1.attention.backends.triton_attn import TritonAttentionMetadataBuilder as Builder

    init = Builder.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.seq_threshold_3D = 0

    Builder.__init__ = made


def _sampling() -> None:
    """Let the warm-up sample greedily only. Triton's interpreter cannot run the kernels for
    grammars, top-k and top-p; requests here are greedy.
    """
    from vllm import SamplingParams
    from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

    SamplingParams.for_sampler_warmup = staticmethod(lambda: SamplingParams(temperature=0))

    def masked(
        self: Any, logits: Any, input_batch: Any, grammar_req_ids: Any, grammar_bitmask: Any
    ) -> None:
        """Return the logits unchanged, because no request has a grammar."""

    StructuredOutputsWorker.apply_grammar_bitmask = masked


def _buffers() -> None:
    """Replace pinned host memory that the device sees by ordinary memory, as vLLM does for CPUs."""
    from vllm.v1.worker.cpu.buffer_utils import UvaBuffer
    from vllm.v1.worker.gpu import buffer_utils

    buffer_utils.UvaBuffer = UvaBuffer


def _worker() -> None:
    """Replace the worker's `init_device`, which wants ``cuda:0``, by one for the CPU.

    `kernel_warmup` is left out: it tunes GPU libraries model by model, and imports torchvision for
    that.
    """
    import torch
    from vllm.v1.worker import gpu_worker

    def init_device(self: Any) -> None:
        self.device, self.init_snapshot = torch.device("cpu"), ROOMY
        gpu_worker.init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, "gloo"
        )
        gpu_worker.set_random_seed(self.model_config.seed)
        self._init_workspace_and_model_runner()

    gpu_worker.Worker.init_device = init_device
    gpu_worker.kernel_warmup = lambda worker, *, process_local_only=False: None
