"""Names of vLLM that our engine reaches through an object, not by an import.

For each class there are its attributes, and its functions as we call them. `...` stands for
arguments that a function of ours passes on to vLLM's unchanged.
"""

from __future__ import annotations

OFFLOADING = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler"
RUNNERS = (
    "kv_cache_config",
    "profile_run()",
    "get_model()",
    "capture_model()",
)
WRAPPER = ("clear_all_graphs()", "_all_instances", "graph_pool")

HOOKS: dict[str, tuple[str, ...]] = {
    "vllm.v1.core.sched.scheduler:Scheduler": (
        *("running", "waiting", "kv_holding_waiting", "max_num_running_reqs", "requests"),
        *("grammar_compile_error_reqs", "structured_output_manager"),
        *("get_request_counts()", "_handle_blocked_waiting_request(request)"),
        "_preempt_request(request, timestamp)",
    ),
    "vllm.v1.core.sched.request_queue:RequestQueue": ("remove_request(request)",),
    "vllm.v1.core.kv_cache_manager:KVCacheManager": ("block_pool", "watermark_blocks"),
    "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator": (
        "get_num_blocks_to_allocate(request_id=..., num_tokens=..., new_computed_blocks=..., "
        "num_encoder_tokens=..., total_computed_tokens=..., num_local_computed_tokens=..., "
        "num_tokens_main_model=..., prefill_end=...)",
        "get_blocks(request_id)",
        "single_type_managers",
    ),
    "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager": ("block_size",),
    "vllm.v1.core.block_pool:BlockHashToBlockMap": ("get_one_block(key)", "__len__()"),
    "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue": (
        "remove(block)",
        "prepend_n(blocks)",
        "num_free_blocks",
        "fake_free_list_head",
    ),
    "vllm.v1.core.kv_cache_utils:KVCacheBlock": (
        *("block_id", "block_hash", "ref_cnt", "is_null", "next_free_block"),
    ),
    "vllm.v1.core.sched.output:SchedulerOutput": (
        *("total_num_scheduled_tokens", "num_scheduled_tokens", "scheduled_spec_decode_tokens"),
        *("scheduled_new_reqs", "scheduled_cached_reqs", "has_structured_output_requests"),
    ),
    "vllm.v1.core.sched.output:NewRequestData": ("req_id", "num_computed_tokens"),
    "vllm.v1.core.sched.output:CachedRequestData": (
        *("req_ids", "num_computed_tokens", "resumed_req_ids"),
    ),
    "vllm.v1.request:Request": (
        *("request_id", "status", "num_computed_tokens", "num_prompt_tokens", "num_tokens"),
        *("skip_reading_prefix_cache", "cache_salt", "block_hashes", "update_block_hashes()"),
        *("is_finished()", "structured_output_request"),
    ),
    "vllm.v1.structured_output.request:StructuredOutputRequest": ("grammar",),
    "vllm.v1.structured_output:StructuredOutputManager": ("backend",),
    "vllm.v1.structured_output.backend_types:StructuredOutputBackend": (
        "allocate_token_bitmask(max_num_seqs)",
    ),
    "vllm.v1.structured_output.backend_types:StructuredOutputGrammar": (
        *("is_terminated()", "fill_bitmask(bitmask, batch_index)"),
    ),
    "vllm.v1.engine.output_processor:OutputProcessor": (
        *("request_states", "process_outputs(engine_core_outputs, ...)"),
    ),
    "vllm.v1.engine.output_processor:RequestState": ("queue",),
    "vllm.v1.engine.output_processor:RequestOutputCollector": ("put(output)",),
    "vllm.v1.engine.core:EngineCoreProc": (
        "_send_abort_outputs_to_client(req_ids, client_index)",
        "_send_error_outputs_to_client(req_ids, client_index)",
    ),
    "vllm.v1.engine:EngineCoreOutputs": ("outputs",),
    "vllm.v1.engine:EngineCoreOutput": ("request_id", "finish_reason", "stop_reason"),
    "vllm.v1.kv_cache_interface:KVCacheConfig": (
        *("num_blocks", "kv_cache_tensors", "kv_cache_groups"),
    ),
    "vllm.v1.kv_cache_interface:KVCacheTensor": (
        *("size", "block_stride", "layer_stride", "offset", "layers"),
    ),
    "vllm.v1.kv_cache_interface:KVCacheGroupSpec": ("kv_cache_spec", "layer_names"),
    "vllm.v1.kv_cache_interface:KVCacheSpec": (
        *("block_size", "page_size_bytes", "max_memory_usage_bytes(vllm_config)"),
    ),
    "vllm.v1.kv_cache_interface:UniformTypeKVCacheSpecs": (
        *("kv_cache_specs", "max_memory_usage_pages(vllm_config)"),
    ),
    "vllm.model_executor.layers.fused_moe.runner.moe_runner:MoERunner": (
        *("routed_experts", "shared_experts", "_forward_entry"),
        "_forward_impl(hidden_states, router_logits, shared_experts_input, input_ids)",
        "forward(hidden_states, router_logits)",
    ),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": (
        *(*RUNNERS, "requests"),
        *("input_batch", "prepare_inputs_event", "discard_request_mask", "cudagraph_dispatcher"),
        "_dummy_run(num_tokens, is_profile=...)",
    ),
    "vllm.v1.worker.gpu_input_batch:InputBatch": ("block_table", "num_reqs", "generators"),
    "vllm.v1.worker.block_table:MultiGroupBlockTable": ("block_tables",),
    "vllm.v1.worker.block_table:BlockTable": ("block_table",),
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner": (
        *RUNNERS,
        *("block_tables", "cudagraph_manager"),
        "_dummy_run(num_tokens, is_profile=..., skip_attn=...)",
    ),
    "vllm.v1.worker.gpu.block_table:BlockTables": (
        *("block_tables", "input_block_tables"),
        "gather_block_tables(idx_mapping, num_reqs_padded, out, ...)",
    ),
    f"{OFFLOADING}:OffloadingConnectorScheduler": ("_req_status", "config"),
    f"{OFFLOADING}:RequestOffloadState": (
        *("group_states", "update_offload_keys()"),
        "update_num_hit_chunks(num_cached_tokens)",
    ),
    f"{OFFLOADING}:RequestGroupState": ("offload_keys",),
    f"{OFFLOADING}:SchedulerOffloadConfig": ("kv_group_configs",),
    f"{OFFLOADING}:GroupOffloadConfig": ("tokens_per_chunk",),
    "vllm.model_executor.layers.fused_moe.modular_kernel:FusedMoEExpertsModular": (
        "apply(output, hidden_states, w1, w2, topk_weights, topk_ids, ...)",
    ),
    "vllm.lora.ops.torch_ops.lora_ops": (
        "bgmv_shrink(inputs, lora_b_weights, output_tensor, lora_indices_tensor, ...)",
        "bgmv_expand(inputs, lora_b_weights, output_tensor, lora_indices_tensor, ...)",
        "bgmv_expand_slice(inputs, lora_b_weights, output_tensor, lora_indices_tensor, ...)",
    ),
}

GRAPHS: dict[str, tuple[str, ...]] = {
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager": (
        *("dispatch(...)", "release_graphs()", "_candidates", "pool"),
    ),
    "vllm.v1.worker.gpu.cudagraph_utils:BatchExecutionDescriptor": ("cg_mode",),
    "vllm.v1.cudagraph_dispatcher:CudagraphDispatcher": (
        *("dispatch(..., valid_modes=..., invalid_modes=...)", "cudagraph_keys"),
    ),
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner": ("attn_groups",),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": ("attn_groups",),
    "vllm.v1.worker.utils:AttentionGroup": ("metadata_builders",),
    "vllm.v1.attention.backends.flashinfer:FlashInferMetadataBuilder": ("enable_cuda_graph",),
    "vllm.compilation.breakable_cudagraph:BreakableCUDAGraphWrapper": WRAPPER,
    "vllm.compilation.cuda_graph:CUDAGraphWrapper": WRAPPER,
}
"""Names like those in `HOOKS` that `device.graphs` needs; without graphs steps run eagerly."""
