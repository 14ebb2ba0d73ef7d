"""Every argument of vLLM's OpenAI server, and what becomes of it under MIRAGE.

Three lists: what follows from the configuration, what works, and what is refused; an argument is
in exactly one of them. `mirage.arguments.check` reads them.
"""

from __future__ import annotations

from mirage.arguments.rules import Rule, Verdict, merged, ours, refused, works

NOT_TRIED = "not tried under MIRAGE"
EAGER = (
    "compiled steps and graphs can run past the waits for streamed layers, which gives wrong text; "
    "device.compile and device.graphs turn on those that do not"
)
ONE_GPU = "one GPU and one engine process per model for now"
SLEEP = "MIRAGE moves the engine's memory itself, and an engine that sleeps would take it away"
OFFLOAD = "vLLM's offloading and MIRAGE's would move the same weights: policy mirage streams layers"
KV_ELSEWHERE = "KV blocks come and go under MIRAGE, and what copies them elsewhere was not tried"
TLS = "the router speaks plain HTTP to its engines over a Unix socket: set http.tls instead"
CORS = "the router answers no preflight requests: let a proxy before it do CORS"
KEYS = "vLLM asks for keys on some of its routes alone, mirage serve --keys FILE asks on all"
NO_ROUTE = "the router passes on none of the routes that this is for"
FRONT = "in the API server, which holds no device memory"
LOGS = "logs and metrics only"
TRIED = "tried: text as in plain vLLM while memory moves"
FOLDER = "no effect: engines read local folders; the revision of a model at a hub is in `model`"
IMAGES = "in the API server; no effect on models of text"
FETCHED = (
    "hosts that media may be fetched from, by their exact names; none by default and for an empty "
    "list: requests bring media as `data:` URLs then"
)
FILES = "a folder whose files requests may name as media, and so read; none by default"
STATE = "kernels and state of state-space layers were not tried with memory that moves"
PACKS = "kernels may pack weights their own way, and other than vLLM's choice was not tried"
ADAPTERS = "adapters are served under their own names, and their memory is counted"
LORA = "adapters that are laid out or computed otherwise were not tried"
POOLING = "embeddings, scores and rankings, on vLLM's own routes"
BACKENDS = ("auto", "FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "CPU_ATTN")
BACKENDS_WORDS = (
    "growing needs a layout in which a block's layers lie together, and other backends than "
    "FLASH_ATTN, TRITON_ATTN and FLASHINFER were not looked at"
)
DRAFTS = "speculative decoding is set by speculative_config, in one place"

DRAFT = "this kind of speculative decoding was not tried while memory moves"
DRAFTED = frozenset({"ngram", "draft_model", "eagle", "eagle3", "medusa"})
"""Kinds of speculative decoding that are served. A draft model's layers stay where vLLM put them,
and count as fixed bytes."""
MLA_FP8 = "vLLM's latent attention on a CPU cannot read a KV cache of 8 bits: leave it out"
DRAFTED_LORA = (
    "adapters and this kind of speculative decoding end vLLM's engine on a CPU: leave one out, or "
    "draft by ngram"
)
PACKED_LORA = (
    "engine_args.enable_lora: oneDNN packs this model's weights away on a CPU, and vLLM's adapters "
    "look for them: leave it out, or serve the model unquantised"
)
KV_DTYPES = frozenset({"auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"})
"""Types of the KV cache that are served, by their names in vLLM's finished configuration. vLLM has
mostly replaced ``auto`` by the model's dtype there."""

TABLE = merged(
    # -- what follows from the configuration ---------------------------------------------
    ours("tenants[].model", "model", "model_tag"),
    ours("tenants[].name", "served_model_name"),
    ours("tenants[].max_model_len", "max_model_len"),
    ours("tenants[].max_num_seqs", "max_num_seqs"),
    ours("tenants[].max_num_batched_tokens", "max_num_batched_tokens"),
    ours("dtype", "dtype"),
    ours("block_tokens", "block_size"),
    ours("device.memory and tenants[].share", "gpu_memory_utilization", "kv_cache_memory_bytes"),
    ours("device.memory and tenants[].share", "num_gpu_blocks_override"),
    ours("device.index", "device_ids"),
    ours("mirage serve --host and --port", "host", "port", "uds"),
    ours("policy", "additional_config", "scheduler_cls", "worker_cls"),
    ours("policy", "distributed_executor_backend"),
    # -- what works ----------------------------------------------------------------------
    works(
        FRONT,
        *("chat_template", "chat_template_content_format", "trust_request_chat_template"),
        *("default_chat_template_kwargs", "response_role", "return_tokens_as_token_ids"),
        *("enable_auto_tool_choice", "exclude_tools_when_tool_choice_none", "tool_call_parser"),
        *("tool_parser_plugin", "tool_strict_level", "reasoning_parser", "reasoning_parser_plugin"),
        *("enable_prompt_tokens_details", "enable_per_request_metrics"),
        *("enable_server_load_tracking", "enable_force_include_usage", "sse_keep_alive_interval"),
        *("fingerprint_mode", "fingerprint_value", "enable_request_id_headers"),
        *("cohere_format", "renderer_num_workers", "disable_fastapi_docs"),
        *("h11_max_incomplete_event_size", "h11_max_header_count"),
        *("tokenizer", "tokenizer_mode", "generation_config", "override_generation_config"),
        *("stream_interval", "max_num_queued_reqs", "max_num_queued_tokens"),
        "reasoning_effort_map",
    ),
    works(
        "the folder's own code runs, of a model at a hub by its commit alone; what it builds is "
        "judged like any other model",
        "trust_remote_code",
    ),
    works(
        LOGS,
        *("disable_log_stats", "aggregate_engine_logging", "enable_log_requests", "max_log_len"),
        *("enable_log_outputs", "enable_log_deltas", "log_error_stack", "log_level"),
        *("logging_config", "log_config_file", "uvicorn_log_level", "disable_uvicorn_access_log"),
        *("disable_access_log_for_endpoints", "show_hidden_metrics_for_version"),
        *("kv_cache_metrics", "kv_cache_metrics_sample", "custom_histogram_buckets"),
        *("cudagraph_metrics", "enable_mfu_metrics", "enable_logging_iteration_details"),
        *("per_request_spec_decode_metrics", "jit_monitor_verbose", "fail_on_environ_validation"),
        "use_tqdm_on_load",
    ),
    works(
        TRIED,
        *("seed", "max_logprobs", "logprobs_mode", "use_fp64_gumbel"),
        *("enable_prompt_embeds", "structured_outputs_config"),
        *("enable_prefix_caching", "enable_chunked_prefill"),
        *("max_num_scheduled_tokens", "max_num_active_seqs", "long_prefill_token_threshold"),
        *("long_prefill_token_threshold_adaptive", "scheduling_policy", "async_scheduling"),
        *("scheduler_reserve_full_isl", "safetensors_prefetch_num_threads"),
        "safetensors_prefetch_block_size",
    ),
    works(
        FOLDER,
        *("revision", "code_revision", "tokenizer_revision", "download_dir"),
    ),
    works(
        IMAGES,
        *("limit_mm_per_prompt", "media_io_kwargs", "mm_processor_kwargs", "mm_hasher_algorithm"),
        *("mm_processor_cache_gb", "interleave_mm_strings", "disable_chunked_mm_input"),
        *("trust_request_mm_kwargs", "skip_mm_profiling"),
    ),
    works(FETCHED, "allowed_media_domains"),
    works(FILES, "allowed_local_media_path"),
    works("no effect with one GPU", "disable_custom_all_reduce"),
    works("no effect: vLLM has removed what it was for", "disable_cascade_attn"),
    # -- what is refused, but for the values named with it --------------------------------
    refused(EAGER, "enforce_eager", but=(True,)),
    refused(EAGER, "optimization_level", but=(0,)),
    refused(
        EAGER,
        "compilation_config",
        inside={
            "mode": Rule(Verdict.REFUSED, EAGER, (0, "NONE")),
            "cudagraph_mode": Rule(Verdict.REFUSED, EAGER, (0, "NONE")),
        },
    ),
    refused(EAGER, "cudagraph_capture_sizes", "max_cudagraph_capture_size", but=(None,)),
    refused(EAGER, "performance_mode", but=("balanced",)),
    refused(SLEEP, "enable_sleep_mode", "sleep_mode_offload_cudagraph", but=(False,)),
    refused(SLEEP, "sleep_preserve_parameter_names"),
    refused(SLEEP, "sleep_mode_backend", but=("cumem",)),
    refused(
        "memory of MIRAGE's own takes its place",
        *("enable_cumem_allocator", "enable_nccl_comm_suspend"),
        but=(False,),
    ),
    refused(OFFLOAD, "offload_backend", but=("auto",)),
    refused(OFFLOAD, "cpu_offload_gb", "offload_group_size", but=(0,)),
    refused(OFFLOAD, "offload_num_in_group", "offload_prefetch_step", but=(1,)),
    refused(OFFLOAD, "cpu_offload_params", "offload_params"),
    refused(KV_ELSEWHERE, "kv_offloading_size", "kv_transfer_config", but=(None,)),
    refused(KV_ELSEWHERE, "ec_transfer_config", "kv_events_config", but=(None,)),
    refused(KV_ELSEWHERE, "kv_offloading_backend", but=("native",)),
    refused(NOT_TRIED, "ec_manager_config"),
    refused(
        "RLHF's weight updates would go past the masters in host memory",
        "weight_transfer_config",
        but=(None,),
    ),
    # one GPU, one engine process
    refused(
        ONE_GPU,
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
        *("decode_context_parallel_size", "prefill_context_parallel_size", "nnodes"),
        *("dcp_kv_cache_interleave_size", "cp_kv_cache_interleave_size"),
        *("data_parallel_size_local", "api_server_count", "prefill_schedule_interval"),
        but=(1,),
    ),
    refused(ONE_GPU, "node_rank", but=(0,)),
    # Rank 0 of 1 is refused by vLLM: a rank means that others balance the load.
    refused(ONE_GPU, "data_parallel_rank", "data_parallel_start_rank", but=(None,)),
    refused(
        ONE_GPU,
        *("headless", "numa_bind", "data_parallel_hybrid_lb", "data_parallel_external_lb"),
        *("data_parallel_multi_port_external_lb", "enable_hc_sp", "enable_expert_parallel"),
        *("enable_batch_sharded_sampling", "enable_ep_weight_filter", "enable_dbo"),
        *("enable_shm_tensor_arena", "enable_elastic_ep", "enable_eplb", "dcp_q_replicate"),
        *("disable_nccl_for_dp_synchronization", "ray_workers_use_nsight"),
        "enable_fault_tolerance",
        but=(False,),
    ),
    refused(
        ONE_GPU,
        *("numa_bind_nodes", "numa_bind_cpus", "dcp_comm_backend", "data_parallel_address"),
        *("data_parallel_rpc_port", "elastic_ep_max_dp_size", "max_parallel_loading_workers"),
        *("distributed_timeout_seconds", "cpu_distributed_timeout_seconds"),
        but=(None,),
    ),
    refused(
        ONE_GPU,
        *("master_addr", "master_port", "data_parallel_backend", "all2all_backend"),
        *("ubatch_size", "dbo_decode_token_threshold", "dbo_prefill_token_threshold"),
        *("dp_sync_interval", "eplb_config", "expert_placement_strategy"),
        *("fault_tolerance_config", "data_parallel_supervisor_port"),
        *("dp_supervisor_probe_interval_s", "dp_supervisor_probe_timeout_s"),
        "dp_supervisor_probe_failure_threshold",
    ),
    refused("code of others in every step was not tried", "logits_processors", but=(None,)),
    refused("code of others in MIRAGE's worker was not tried", "worker_extension_cls", but=("",)),
    # the front
    refused(KEYS, "api_key", but=(None, [])),
    refused(
        "a command line shows it, and models are local folders: for code of others that wants one, "
        "set HF_TOKEN in the environment",
        "hf_token",
        but=(None, True, False),
    ),
    refused("it prints vLLM's options and serves nothing", "help"),
    refused("write the file's keys under engine_args, where they are checked", "config"),
    refused("the router speaks HTTP to its engines", "grpc", but=(False,)),
    refused("the router speaks HTTP to its engines", "grpc_port", but=(None,)),
    refused(
        "mirage serve ends its engines itself, and waits for no request",
        "shutdown_timeout",
        but=(0,),
    ),
    refused(TLS, "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ciphers", but=(None,)),
    refused(TLS, "enable_ssl_refresh", but=(False,)),
    refused(TLS, "ssl_cert_reqs", but=(0,)),
    refused(CORS, "allow_credentials", but=(False,)),
    refused(CORS, "allowed_origins", but=([],)),
    refused(CORS, "allowed_methods", "allowed_headers", but=(["*"],)),
    refused("code of others between the router and the engine was not tried", "middleware"),
    refused("the router knows no prefix: let a proxy before it add one", "root_path"),
    refused(
        NO_ROUTE,
        *("enable_tokenizer_info_endpoint", "tokens_only", "enable_scale_out"),
        "enable_offline_docs",
        but=(False,),
    ),
    refused(NO_ROUTE, "cohere_is_reasoning_model", but=(True,)),
    refused(NO_ROUTE, "tool_server", but=(None,)),
    refused(NO_ROUTE, "anthropic_disabled_thinking_effort", but=("auto",)),
    # pooling models
    works(POOLING, "runner", "convert", "pooler_config"),
    refused(NOT_TRIED, "io_processor_plugin", but=(None,)),
    refused(NOT_TRIED, "enable_flash_late_interaction", but=(True,)),
    # the model
    refused("requests are text, and need the tokenizer", "skip_tokenizer_init", but=(False,)),
    refused(
        "sizes and layers are those of the folder's config.json: change it there",
        "hf_config_path",
        but=(None,),
    ),
    refused(
        "sizes and layers are those of the folder's config.json: change it there",
        "hf_overrides",
        inside={
            name: Rule(Verdict.WORKS, "positions alone")
            for name in ("rope_parameters", "rope_scaling", "rope_theta")
        },
    ),
    refused(
        "a folder with config.json is what is served: use auto or hf",
        "config_format",
        but=("auto", "hf"),
    ),
    refused(
        "quantising while loading was not tried: serve a checkpoint that is quantised",
        *("quantization", "quantization_config"),
        but=(None,),
    ),
    refused(NOT_TRIED, "allow_deprecated_quantization", but=(False,)),
    refused(NOT_TRIED, "model_class_overrides"),
    refused(
        NOT_TRIED,
        "model_impl",
        but=("auto", "vllm", "transformers"),
    ),
    refused(
        NOT_TRIED,
        *(
            "enable_return_routed_experts",
            "return_sampling_mask",
            "enable_trace_replay",
            "disable_sliding_window",
        ),
        but=(False,),
    ),
    refused(
        "weights are read from *.safetensors, or made up: use auto, hf, safetensors or dummy",
        "load_format",
        but=("auto", "hf", "safetensors", "dummy"),
    ),
    refused(
        "only lazy, eager and prefetch were tried",
        "safetensors_load_strategy",
        but=(None, "lazy", "eager", "prefetch"),
    ),
    refused(NOT_TRIED, "model_loader_extra_config"),
    refused("which files hold weights is read from the folder", "ignore_patterns"),
    refused("weights are read from *.safetensors", "pt_load_map_location", but=("cpu",)),
    # kernels, and what lies in the KV cache
    refused(BACKENDS_WORDS, "attention_backend", but=BACKENDS),
    refused(
        NOT_TRIED,
        "attention_config",
        inside={"backend": Rule(Verdict.REFUSED, BACKENDS_WORDS, BACKENDS)},
    ),
    refused(
        "other than the models' dtype, only eight-bit floating point was tried",
        "kv_cache_dtype",
        but=("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16"),
    ),
    refused("the KV cache has one dtype", "kv_cache_dtype_skip_layers"),
    refused(STATE, "gdn_prefill_backend", "mamba_ssu_algorithm", "mamba_block_size", but=(None,)),
    refused(STATE, "kda_prefill_backend", "kda_decode_backend", but=(None, "auto")),
    refused(STATE, "mamba_backend", but=("triton",)),
    refused(STATE, "mamba_cache_dtype", "mamba_ssm_cache_dtype", but=("auto",)),
    refused(STATE, "mamba_cache_mode", but=("none",)),
    refused(
        STATE,
        *("enable_mamba_cache_stochastic_rounding", "enable_mamba_shared_prefix_checkpoint"),
        "use_replayssm",
        but=(False,),
    ),
    refused(STATE, "mamba_cache_philox_rounds", but=(0,)),
    refused(STATE, "replayssm_buffer_len", but=(16,)),
    refused(
        "xxHash is no cryptographic hash: prompts of different users could share KV blocks",
        "prefix_caching_hash_algo",
        but=("sha256", "sha256_cbor"),
    ),
    refused(NOT_TRIED, "prefix_cache_retention_interval", but=(0,)),
    refused(NOT_TRIED, "prefix_match_unit", "disable_hybrid_kv_cache_manager", but=(None,)),
    refused(NOT_TRIED, "kv_sharing_fast_prefill", but=(False,)),
    refused(NOT_TRIED, "swa_bounded_replay", but=(True,)),
    refused("MIRAGE sets it: newcomers leave room", "watermark", but=(0,)),
    refused(PACKS, "moe_backend", "linear_backend", "sparse_indexer_topk_backend", but=("auto",)),
    refused(PACKS, "enable_flashinfer_autotune", but=(None, False)),
    refused(PACKS, "ir_op_priority", "kernel_config"),
    refused("a kernel of a whole layer waits for no streamed one", "monokernel", but=(False,)),
    # images and sound
    refused(NOT_TRIED, "language_model_only", "enable_mm_embeds", "mm_encoder_only", but=(False,)),
    refused("shared memory would outlive the engine", "mm_processor_cache_type", but=("lru",)),
    refused("shared memory would outlive the engine", "mm_tensor_ipc", but=("direct_rpc",)),
    refused(NOT_TRIED, "mm_shm_cache_max_object_size_mb", but=(128,)),
    refused(ONE_GPU, "mm_encoder_tp_mode", but=("weights",)),
    refused(
        NOT_TRIED,
        *("mm_encoder_attn_backend", "mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path"),
        *("mm_encoder_fp8_scale_save_path", "video_pruning_rate", "mm_device_do_normalize"),
        but=(None,),
    ),
    refused(NOT_TRIED, "mm_encoder_fp8_scale_save_margin", but=(1.5,)),
    refused(NOT_TRIED, "video_pruning_method", but=("evs",)),
    refused("device memory that is not counted", "mm_processor_device", but=("auto", "cpu")),
    refused("device memory that is not counted", "mm_ipc_gpu_memory_gb", but=(0,)),
    # adapters
    refused(
        LORA,
        *("fully_sharded_loras", "enable_tower_connector_lora"),
        *("specialize_active_lora", "enable_mixed_moe_lora_format", "enable_moe_shared_loras"),
        but=(False,),
    ),
    refused(
        LORA,
        *("lora_target_modules", "default_mm_loras", "max_lora_cls_labels"),
        but=(None,),
    ),
    works(ADAPTERS, "enable_lora", "lora_modules", "max_loras", "max_lora_rank", "max_cpu_loras"),
    refused(LORA, "lora_dtype", but=("auto",)),
    # the rest
    refused(NOT_TRIED, "otlp_traces_endpoint", "collect_detailed_traces", but=(None,)),
    refused(
        "its hooks in the layers were not tried", "enable_layerwise_nvtx_tracing", but=(False,)
    ),
    refused("profiling was not tried while memory moves", "profiler_config"),
    refused("a kernel compiled late would end the engine", "jit_monitor_mode", but=("warn",)),
    refused(DRAFTS, "spec_method", "spec_model", "spec_tokens", but=(None,)),
    refused(
        DRAFT,
        "speculative_config",
        but=(None,),
        inside={
            "method": Rule(Verdict.REFUSED, DRAFT, tuple(sorted(DRAFTED))),
            **works(
                "counts of tokens",
                *("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"),
            ),
            **works("its layers stay, and what they hold is counted", "model"),
        },
    ),
    refused(
        NOT_TRIED,
        *("watermark_config", "diffusion_config", "engram_config", "reasoning_config"),
        but=(None,),
    ),
    refused(NOT_TRIED, "aux_output_config", "watchdog_config"),
)

NEWER = frozenset({"monokernel", "reasoning_effort_map", "sleep_mode_backend", "watchdog_config"})
"""Arguments that vLLM 0.33 has, and 0.32 has not."""
