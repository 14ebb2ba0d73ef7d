"""Values of every argument that is served, and which of them share an engine's start."""

from __future__ import annotations

import random
from typing import Any

from mirage.arguments.rules import Verdict
from mirage.arguments.table import TABLE, TRIED

Case = dict[str, Any]

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}

SAID: dict[str, list[Any]] = {
    "chat_template": ["{{ messages[0]['content'] }}"],
    "default_chat_template_kwargs": [{"a": True}],
    "response_role": ["robot"],
    "tool_call_parser": ["hermes", "llama3_json"],
    "sse_keep_alive_interval": [5],
    "fingerprint_value": ["mine"],
    "cohere_format": ["cmd3"],
    "renderer_num_workers": [2],
    "h11_max_incomplete_event_size": [1 << 20],
    "h11_max_header_count": [64],
    "tokenizer_mode": ["auto", "hf"],
    "fail_on_environ_validation": [False],
    "generation_config": ["vllm"],
    "override_generation_config": [{"temperature": 0.0}],
    "stream_interval": [4],
    "max_num_queued_reqs": [100],
    "max_num_queued_tokens": ["64k"],
    "max_log_len": [10],
    "logging_config": [{"log_level": "ERROR", "formatter": "json"}],
    "disable_access_log_for_endpoints": ["/health,/metrics"],
    "show_hidden_metrics_for_version": ["0.30"],
    "kv_cache_metrics_sample": [0.5],
    "custom_histogram_buckets": [{"request_latency": [0.1, 1.0]}],
    "seed": [0, 12345],
    "max_logprobs": [3, -1, 512],
    "structured_outputs_config": [{"backend": "xgrammar"}, {"backend": "guidance"}],
    "max_num_scheduled_tokens": [64, "128"],
    "max_num_active_seqs": [1, 3],
    "long_prefill_token_threshold": [16, 40],
    "safetensors_prefetch_num_threads": [2],
    "safetensors_prefetch_block_size": ["1M"],
    "limit_mm_per_prompt": [{"image": 2}],
    "media_io_kwargs": [{"video": {"num_frames": 4}}],
    "mm_processor_kwargs": [{"a": 1}],
    "mm_processor_cache_gb": [0.5],
    "allowed_local_media_path": ["/tmp"],
    "allowed_media_domains": [["example.org"]],
    "revision": ["main"],
    "code_revision": ["main"],
    "tokenizer_revision": ["main"],
    "download_dir": ["/tmp"],
    "speculative_config": [NGRAM],
    "hf_overrides": [
        {"rope_theta": 50000.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}},
    ],
    "attention_config": [{"backend": "CPU_ATTN"}],
    "compilation_config": [{"mode": 0}, '{"mode": "NONE", "cudagraph_mode": "NONE"}'],
    "mm_hasher_algorithm": ["sha256"],
    "runner": ["auto", "generate"],
    "convert": ["auto", "none"],
    "max_loras": [2],
    "max_cpu_loras": [2],
    "max_lora_rank": [8],
}
"""Values of each argument for which the type alone does not determine usable ones."""

NEEDS_MORE: dict[str, dict[str, Any]] = {
    "enable_auto_tool_choice": {"tool_call_parser": "hermes"},
    "enable_log_outputs": {"enable_log_requests": True},
    "kv_cache_metrics_sample": {"kv_cache_metrics": True},
    "long_prefill_token_threshold_adaptive": {"long_prefill_token_threshold": 40},
    "enable_per_request_metrics": {"disable_log_stats": False},
    "fingerprint_value": {"fingerprint_mode": "custom"},
    "per_request_spec_decode_metrics": {"speculative_config": NGRAM},
    **{name: {"enable_lora": True} for name in ("max_loras", "max_cpu_loras", "max_lora_rank")},
    "safetensors_prefetch_num_threads": {"safetensors_load_strategy": "prefetch"},
}
"""Arguments that mean something together with others alone."""

REQUESTS: dict[str, dict[str, Any]] = {
    "scheduling_policy": {"priority": True},
    "structured_outputs_config": {"bound": True},
    "use_fp64_gumbel": {"sampled": True},
    "logprobs_mode": {"sampled": True},
    "seed": {"sampled": True},
    "enable_chunked_prefill": {"batched": 512},
    "speculative_config": {"repeats": True},
    "per_request_spec_decode_metrics": {"repeats": True},
}
"""Requests that make an argument felt."""

NEEDS_A_FILE = {
    *("tool_parser_plugin", "reasoning_parser_plugin", "log_config_file", "logits_processors"),
    *("tokenizer", "reasoning_parser", "lora_modules", "pooler_config"),
}
"""Served, and tried elsewhere or not at all: they name code or files of the user's,
or tokens and tasks that a tiny model has not."""
DIFFERENT_TEXT = {"load_format": "dummy"}
"""Weights that are made up differ from those in the folder, and so from case to case."""


def values(name: str, kind: str, choices: list[Any]) -> list[Any]:
    """Values of an argument that MIRAGE serves."""
    if name in SAID:
        return SAID[name]
    if TABLE[name].verdict is Verdict.OURS:
        return []
    if TABLE[name].verdict is Verdict.REFUSED:
        return [value for value in TABLE[name].but if value is not None]
    if kind == "switch":
        return [True]
    if kind == "bool":
        return [True, False]
    return [choice for choice in choices if choice is not None]


def alone(name: str, value: Any) -> Case:
    """One argument with what it needs."""
    more = {key: v for key, v in NEEDS_MORE.get(name, {}).items() if key != name}
    return {"engine_args": {name: value, **more}, "rounds": 1, **REQUESTS.get(name, {})}


def together(pairs: list[tuple[str, Any]], rng: random.Random, size: int) -> list[Case]:
    """Arguments that leave the engine as it is, `size` and more in one start, each once."""
    cases: list[Case] = []
    rest = list(pairs)
    rng.shuffle(rest)
    while rest:
        given: dict[str, Any] = {}
        for name, value in list(rest):
            more = NEEDS_MORE.get(name, {})
            if len(given) < size and not given.keys() & {name, *more}:
                given |= {name: value, **more}
                rest.remove((name, value))
        cases.append({"engine_args": given, "rounds": 1})
    return cases


def felt_by_engines(name: str) -> bool:
    """True if the argument has to be tried in an engine by itself."""
    return (
        TABLE[name].words == TRIED
        or name in REQUESTS
        or name
        in (
            *("kv_cache_dtype", "prefix_caching_hash_algo", "load_format", "hf_overrides"),
            *(
                "kv_cache_metrics",
                "compilation_config",
                "safetensors_load_strategy",
                "disable_log_stats",
            ),
            *("enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank"),
        )
    )
