"""Tiny random models of six families, and functions that step vLLM in this process."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import unusual

sys.path.insert(0, str(Path(__file__).parents[2]))  # workers are named as `tests.tampered`'s

from tests import kinds
from tests.plain_kernels import like_ours, without_onednn
from tests.settings import engine_settings

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
os.environ.update(ENVIRONMENT)
kinds.from_environment()

VOCABULARY = 512
BLOCK_TOKENS = 32
LAYERS = 10
POISONING = "tests.tampered.cpu_worker.PoisoningWorker"
UNAWAITED = "tests.tampered.cpu_worker.UnawaitedWorker"
FAMILIES = ("opt", "llama", "qwen2", "qwen3", "mixtral", "qwen3moe")


def make_model(family: str, folder: Path, layers: int = LAYERS, hidden: int = 128) -> Path:
    """Folder with a random bfloat16 model of the family, made once."""
    import torch
    import transformers as hf

    path = folder / f"{family}-{layers}-{hidden}"
    if (path / "model.safetensors").exists():
        return path
    if family in unusual.INT8:
        return unusual.quantise(make_model("llama", folder, layers, hidden), path, family)
    torch.manual_seed(0)
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "max_position_embeddings": 2048,
        "num_attention_heads": hidden // 32,
    }
    gated = {
        **common,
        "intermediate_size": 3 * hidden,
        "num_key_value_heads": hidden // 64,
        "initializer_range": 0.1,
    }
    makers: dict[str, Callable[[], Any]] = {
        "opt": lambda: hf.OPTConfig(
            **common, ffn_dim=4 * hidden, word_embed_proj_dim=hidden, init_std=0.1
        ),
        "llama": lambda: hf.LlamaConfig(**gated, tie_word_embeddings=False),
        "qwen2": lambda: hf.Qwen2Config(**gated, tie_word_embeddings=True),
        "qwen3": lambda: hf.Qwen3Config(**gated, head_dim=32, tie_word_embeddings=True),
        "mixtral": lambda: hf.MixtralConfig(**gated, num_local_experts=4, num_experts_per_tok=2),
        "qwen3moe": lambda: hf.Qwen3MoeConfig(
            **gated, head_dim=32, moe_intermediate_size=hidden, num_experts=4, num_experts_per_tok=2
        ),
    }
    makers |= unusual.configs(common, gated)
    model = hf.AutoModelForCausalLM.from_config(makers[family]()).to(torch.bfloat16)
    model.save_pretrained(path)
    return path


def make_llm(
    path: Path,
    *,
    blocks: int = 256,
    mirage: dict[str, Any] | None = None,
    packed: bool = False,
    **more: Any,
):
    """An engine: plain vLLM with our kernels, or ours if `mirage` settings are given.

    With `packed` it is plain vLLM as it comes, with packed weights.
    """
    from vllm import LLM

    kinds.from_environment()  # again: a fork of the nursery imported this module before
    if os.environ.get(kinds.VARIABLE) == "amx":
        kinds.without_tiles()

    arguments: dict[str, Any] = {
        "model": str(path),
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "block_size": BLOCK_TOKENS,
        "num_gpu_blocks_override": blocks,
        "kv_cache_memory_bytes": 1 << 30,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "seed": 0,
    }
    if mirage is not None:
        settings = engine_settings(**({"page": 4096, "base_blocks": blocks} | mirage))
        arguments |= {
            "distributed_executor_backend": "mirage.engine.executor.InProcessExecutor",
            "worker_cls": "mirage.engine.cpu_worker.MirageCPUWorker",
            "scheduler_cls": "mirage.engine.scheduler.make_scheduler",
            "additional_config": {"mirage": settings.model_dump(mode="json")},
        }
    if packed:
        return LLM(**(arguments | more))
    without_onednn()
    with nullcontext() if mirage is not None else like_ours():
        return LLM(**(arguments | more))


def scheduler_of(llm: Any) -> Any:
    """The scheduler inside the in-process engine core."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def prompts(count: int, length: int, seed: int, shared: int = 64) -> list[list[int]]:
    """Drawn prompts of growing length; every second one begins with the same `shared` tokens."""
    rng = random.Random(seed)
    prefix = [rng.randrange(3, VOCABULARY) for _ in range(shared)]
    out = []
    for i in range(count):
        tail = [rng.randrange(3, VOCABULARY) for _ in range(length + 5 * i)]
        out.append(prefix + tail if i % 2 else tail)
    return out


def run(
    llm: Any,
    batch: list[list[int]],
    max_tokens: int,
    before_step: Callable[[int], None] = lambda step: None,
    logprobs: int | None = 5,
    adapters: Sequence[Any] = (),
) -> list[tuple[list[int], list[list[tuple[int, float]]]]]:
    """Answers to a batch, stepped until all are done: (tokens, top logprobs for each token) of each
    prompt.
    """
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens, temperature=0, ignore_eos=True, detokenize=False, logprobs=logprobs
    )
    return [
        (
            list(out.outputs[0].token_ids),
            [sorted((t, lp.logprob) for t, lp in d.items()) for d in out.outputs[0].logprobs or []],
        )
        for out in step_through(llm, batch, params, before_step, adapters)
    ]


def step_through(
    llm: Any,
    batch: list[Any],
    params: Any,
    before_step: Callable[[int], None] = lambda step: None,
    adapters: Sequence[Any] = (),
) -> list[Any]:
    """vLLM's output for each prompt, stepped until all are done. A prompt is a list of tokens, or
    of vLLM's own forms.

    `adapters` are LoRA requests or None, used by prompts in rotation.
    """
    engine = llm.llm_engine
    for i, prompt in enumerate(batch):
        inputs = {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt
        adapter = adapters[i % len(adapters)] if adapters else None
        engine.add_request(str(i), inputs, params, lora_request=adapter)
    done: dict[str, Any] = {}
    step = 0
    while engine.has_unfinished_requests():
        before_step(step)
        for out in engine.step():
            if out.finished:
                done[out.request_id.split("-")[0]] = out
        step += 1
    return [done[str(i)] for i in range(len(batch))]
