"""Parts of a vLLM worker whose parameters and KV cache are in memory that can move.

This module imports nothing of a particular device: vLLM's CPU worker replaces torch's CUDA streams
and events for its whole process.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from vllm.config import set_current_vllm_config
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.worker.worker_base import WorkerBase

from mirage.engine.arguments import verify
from mirage.engine.blocktables import forget, letting_go
from mirage.engine.compiled import NotHashed
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.keeping import UnfitMaster
from mirage.engine.kvbuffer import KVAllocation
from mirage.engine.memory_worker import MemoryWorker
from mirage.engine.proof import TOKENS
from mirage.engine.stack import built
from mirage.engine.start_times import StartTimes
from mirage.engine.startup import StartUp
from mirage.engine.tiers.offer import offer
from mirage.engine_settings import EngineSettings, from_vllm
from mirage.tiers.client import PoolClient
from mirage.tiers.contract import Member, Pool
from mirage.vllm_hooks.versions import tried


class ElasticWorker(WorkerBase):
    """vLLM's worker with elastic memory. It overrides only vLLM's own hooks; with policy static it
    merely observes."""

    mirage: MemoryWorker
    start_up: StartUp
    """Placement and proof of the model; dropped once the engine is warm."""
    start_times: StartTimes
    proof_tokens: ClassVar[tuple[int, ...]] = (TOKENS,)
    """Numbers of tokens of the forward passes that are proven to compute the same. A host's kernels
    read weights in place at each call, whatever the number, so one is enough."""

    def init_device(self) -> None:
        """Make the memory, before the model is loaded. Raise `RuntimeError` if the engine could
        fail or give wrong text with vLLM's configuration (`verify`)."""
        if why := verify(self.vllm_config):
            raise RuntimeError(why)
        self.start_times = StartTimes()
        self.start_times.lap("process and configuration")
        super().init_device()
        self.mirage = MemoryWorker(self.make_memory(from_vllm(self.vllm_config)))
        self.start_up = self.make_start_up()
        self.vllm_config.additional_config = NotHashed(self.vllm_config.additional_config)

    # A subclass may override the next three.

    def make_memory(self, settings: EngineSettings) -> DeviceMemory:
        """Return the empty memory of this engine."""
        return DeviceMemory(settings)

    def make_start_up(self) -> StartUp:
        """Return the object that places the model of a starting engine in this worker's memory, and
        proves it."""
        return StartUp(self.mirage.memory, self.mirage.times)

    def join_pool(self, member: Member) -> Pool:
        """Join the pool of KV blocks that the settings name, and return it."""
        socket = self.mirage.settings.tier_socket
        assert socket is not None
        return PoolClient(Path(socket), member)

    # -- vLLM's hooks -------------------------------------------------------------------

    def load_model(self, **kwargs: Any) -> None:
        """Load and process the weights, then put the layers in their final places, and prove the
        model.

        If the keeper's weights turn out not to fit, the model is built and loaded a second time,
        from its files. Raise `UnsupportedModel` if the model does not compute the same afterwards.
        """
        keeping = self.start_up.keeping
        self.start_up.find_proof(self.vllm_config)
        try:
            with built(self.start_up.parameters.found), keeping.loading(self.vllm_config):
                super().load_model(**kwargs)
        except UnfitMaster as error:
            keeping.gives_up(error)
            _forget_layers(self.vllm_config.compilation_config)
            with built(self.start_up.parameters.found):
                super().load_model(**kwargs)
        self.start_times.lap("weights")
        with set_current_vllm_config(self.vllm_config):
            runner = self.model_runner
            self.start_up.loaded(runner, partial(_dummy_step, self), runner.profile_run)
        self.mirage.tasks = self.get_supported_tasks()
        recalled = self.start_up.recalled
        self.start_times.lap("layers placed" if recalled else "layers placed and proven")

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Serve vLLM's allocation of the KV cache from the reserved address range, and join the
        pool below it before, if the settings name one. Raise `RuntimeError` if vLLM allocated it
        otherwise."""
        self._kv_config, settings = kv_cache_config, self.mirage.settings
        self._letting_go = letting_go(kv_cache_config)
        memory = self.mirage.memory
        memory.kv_outlives_steps = _outlives_steps(self.vllm_config, kv_cache_config)
        self._allocation: KVAllocation | None = None
        offer(
            self.mirage,
            self.join_pool,
            self.start_up.parameters.hidden(),
            self.vllm_config,
            kv_cache_config,
            self.model_runner.get_model(),
        )
        super().initialize_from_config(kv_cache_config)
        elastic = settings.elastic and bool(kv_cache_config.kv_cache_tensors)
        if elastic and (self._allocation is None or self._allocation.served != 1):
            raise RuntimeError(
                "vLLM did not allocate its KV cache the way this version of MIRAGE knows: "
                f"use vLLM {tried('or')}"
            )
        self.start_times.lap("KV cache")

    def compile_or_warm_up_model(self, *args: Any, **kwargs: Any) -> Any:
        """Warm up as vLLM does. These steps also compile kernels, so they are not used for T_c."""
        with set_current_vllm_config(self.vllm_config):
            self.start_up.prove_compiled(self.model_runner, partial(_dummy_step, self))
        done = super().compile_or_warm_up_model(*args, **kwargs)
        del self.start_up
        self.mirage.times.warm = True
        self.start_times.lap("warm-up")
        print(f"mirage: {self.start_times}", file=sys.stderr, flush=True)
        return done

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        config = self._kv_config if tag == "kv_cache" else None
        if config is None or not self.mirage.settings.elastic or not config.kv_cache_tensors:
            context: AbstractContextManager[Any] = super()._maybe_get_memory_pool_context(tag)
            return context
        self._allocation = KVAllocation(
            config.kv_cache_tensors[0].size, lambda: self.start_up.make_kv_buffer(config)
        )
        return self._allocation

    def execute_model(self, scheduler_output: Any) -> Any:
        """Execute vLLM's step while this thread holds the engine (`Mailbox.hold`), so that no
        memory moves.

        T_c is learned from its compute time, waits for loads left out.
        """
        memory = self.mirage.memory
        with self.mirage.mailbox.hold():
            tokens = scheduler_output.total_num_scheduled_tokens
            if not tokens:
                return super().execute_model(scheduler_output)
            with self.mirage.times.timed_step(tokens), memory.compute.step():
                if self._letting_go:
                    forget(self.model_runner, self._letting_go, memory.left_blocks())
                memory.begin_step()
                output = super().execute_model(scheduler_output)
            self.mirage.planned = False
            return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample as vLLM does, while this thread holds the engine (`Mailbox.hold`): vLLM's second
        runner begins and ends copies of KV blocks here, and drafts are computed."""
        with self.mirage.mailbox.hold():
            return super().sample_tokens(grammar_output)


def _forget_layers(compilation_config: Any) -> None:
    """Remove all layers from vLLM's compilation configuration, because the model that registered
    them there is about to be built a second time."""
    compilation_config.static_forward_context.clear()
    compilation_config.static_all_moe_layers.clear()


def _outlives_steps(vllm_config: Any, kv_cache_config: Any) -> bool:
    """True if vLLM enqueues work on KV blocks after a step's output: a drafter's, or copies of
    states between blocks."""
    groups = kv_cache_config.kv_cache_groups
    states = any(isinstance(group.kv_cache_spec, MambaSpec) for group in groups)
    return vllm_config.speculative_config is not None or states


def _dummy_step(worker: Any) -> None:
    """Compute the model without requests, as vLLM does to measure the memory that it takes.

    It runs once for each of the worker's `proof_tokens`, the smallest number last.
    """
    most = worker.scheduler_config.max_num_batched_tokens
    more = {"skip_attn": True} if getattr(worker, "use_v2_model_runner", False) else {}
    for count in sorted({min(tokens, most) for tokens in worker.proof_tokens}, reverse=True):
        worker.mirage.memory.begin_step()
        worker.model_runner._dummy_run(count, is_profile=True, **more)
