"""vLLM's GPU worker with parameters and KV cache in memory that can move."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.config import CUDAGraphMode
from vllm.v1.worker.gpu_worker import Worker

from mirage.config import Policy
from mirage.engine.blocktables import zero_tails
from mirage.engine.elastic_worker import ElasticWorker
from mirage.engine.graphs import abandon, gate, known
from mirage.engine.kvbuffer import KVBuffer
from mirage.engine.layouts import layouts_on_gpu
from mirage.engine.proof import TOKENS

logger = logging.getLogger("mirage.engine.gpu_worker")

MANY_TOKENS = 512
"""Number of tokens for the second proof: GPU libraries choose kernels by the number of rows, and
with 512 they choose those of prompts."""
STREAMING = (
    "CUDA graphs are to be captured while layers stream ({} remapped, {} slots), or experts "
    "are away ({}): a graph would hold no waits for them. "
    "Serve with device.graphs false, and report this"
)
EAGERLY = "no CUDA graphs, every step runs eagerly: %s"


class MirageGPUWorker(ElasticWorker, Worker):
    """Worker on an NVIDIA GPU. Its steps are enqueued, so KV memory is unmapped only after the
    outputs of all steps that may touch it."""

    proof_tokens = (TOKENS, MANY_TOKENS)

    def init_device(self) -> None:
        """Initialise the device. With policy mirage, turn graphs off if the settings forbid them or
        if it is not known where vLLM chooses them. That is done before the model is loaded and
        perhaps wrapped for graphs."""
        super().init_device()
        eager, runner = self.model_config.enforce_eager, type(self.model_runner)
        if self.mirage.settings.policy is Policy.MIRAGE and (why := _why_eager(eager, runner)):
            logger.warning(EAGERLY, why)
            self.model_config.enforce_eager = True
            self.compilation_config.cudagraph_mode = CUDAGraphMode.NONE

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """Return those KV cache layouts of the attention backends that `layouts_on_gpu` selects,
        best first."""
        layouts: list[str] = super().get_supported_kv_cache_layouts()
        return layouts_on_gpu(layouts, elastic=self.mirage.settings.elastic)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Initialise the KV cache; rows of block tables end in the null block if blocks may be
        given away."""
        super().initialize_from_config(kv_cache_config)
        if self.mirage.memory.kv is not None:
            zero_tails(self.model_runner)

    def compile_or_warm_up_model(self, *args: Any, **kwargs: Any) -> Any:
        """Capture graphs as vLLM does, with all layers resident. Afterwards graphs of whole steps
        are replayed only while no parameter is away (`gate`)."""
        memory = self.mirage.memory
        moves = memory.streamer is not None
        if moves:
            self.model_runner.capture_model = _capture_or_not(self)
        with only_mapped_blocks(self.model_runner, memory.kv):
            done = super().compile_or_warm_up_model(*args, **kwargs)
        if moves and not self.model_config.enforce_eager:
            gate(self.model_runner, lambda: memory.interrupted, memory.pieces)
        return done


def _capture_or_not(worker: MirageGPUWorker) -> Callable[..., int]:
    """Return a replacement for vLLM's capture, which returns the bytes of the graphs, or 0 after a
    failure: steps then run eagerly.

    A capture may fail because memory lacks, or in a kernel that cannot be captured. If the device
    does not recover, vLLM's next call fails.
    """
    runner = worker.model_runner
    capture = runner.capture_model

    def capturing(*args: Any, **kwargs: Any) -> int:
        memory = worker.mirage.memory
        if memory.streaming or memory.experts:
            raise RuntimeError(
                STREAMING.format(memory.layers_remapped, memory.stream_slots, memory.experts)
            )
        try:
            return int(capture(*args, **kwargs))
        except Exception as error:
            logger.warning(EAGERLY, f"they could not be captured ({error})")
        worker.model_config.enforce_eager = True
        abandon(runner)
        return 0

    return capturing


def _why_eager(eager: bool, runner: type) -> str:
    """Return the reason why no graphs may be captured; empty if they may. `eager`: the settings
    forbid graphs."""
    if eager:
        return "device.graphs is false"
    return "" if known(runner) else "this vLLM chooses its graphs where we do not know"


@contextmanager
def only_mapped_blocks(runner: Any, kv: KVBuffer | None) -> Iterator[None]:
    """Context in which vLLM's second model runner warms up with the mapped blocks only, not with
    all that could be mapped."""
    config = runner.kv_cache_config
    if kv is None:
        yield
        return
    universe = config.num_blocks
    config.num_blocks = len(kv.extents.mapped) * kv.extents.blocks_per_extent
    try:
        yield
    finally:
        config.num_blocks = universe
