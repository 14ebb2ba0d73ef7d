"""Every environment variable of vLLM's, and what becomes of it under MIRAGE.

Engines inherit the environment. Three lists, as for arguments: what MIRAGE sets itself, what is
passed on, and what is refused. `mirage.arguments.check` reads them.
"""

from __future__ import annotations

from mirage.arguments.rules import merged, ours, refused, works
from mirage.arguments.table import (
    EAGER,
    FOLDER,
    FRONT,
    KEYS,
    KV_ELSEWHERE,
    LOGS,
    LORA,
    NO_ROUTE,
    NOT_TRIED,
    ONE_GPU,
    PACKS,
    STATE,
)

ELASTIC = "MIRAGE decides how much memory the KV cache has, and how it lies there"
KERNELS = "other kernels than vLLM's choice were not tried"
UNCOUNTED = "device memory that is not counted"
COMPILER = "other settings of the compiler than vLLM's were not tried while layers stream"
PROFILING = "profiling was not tried while memory moves"
ALONE = "no effect: an engine is alone on one GPU"
NOWHERE = "no effect: KV blocks go nowhere but into MIRAGE's tiers"
NO_RAY = "no effect: engines run without Ray"
OTHERS = "no effect: neither a host nor an NVIDIA GPU reads it"
BUILD = "vLLM's build and image; no effect on a model"
MEDIA = "how media that requests bring are fetched and read, in the API server"
KEPT = "a folder for what may be needed again"
NVIDIA = "which of NVIDIA's libraries are loaded"
ENDS = "mirage serve ends its engines itself"
DECLARED = "engines load the adapters that a tenant declares, from adapter_folders, and no others"

ENVIRONMENT = merged(
    # -- what MIRAGE sets itself, whatever it was ------------------------------------------
    ours("device.index, which counts among the GPUs that it names", "CUDA_VISIBLE_DEVICES"),
    ours("TMPDIR, where the run's folder lies", "VLLM_RPC_BASE_PATH"),
    ours("nothing: engines tell nobody how they are used", "VLLM_NO_USAGE_STATS"),
    ours("nothing: the router, its one client, closes idle ones", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"),
    # -- what is passed on -----------------------------------------------------------------
    works(
        LOGS,
        *("VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH", "VLLM_LOGGING_LEVEL"),
        *("VLLM_LOGGING_STREAM", "VLLM_LOGGING_PREFIX", "VLLM_LOGGING_COLOR", "NO_COLOR"),
        *("FORCE_COLOR", "VLLM_LOG_STATS_INTERVAL", "VLLM_LOG_BATCHSIZE_INTERVAL"),
        *("VLLM_LOG_MODEL_INSPECTION", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "VLLM_GC_DEBUG"),
        *("VLLM_DEBUG_MFU_METRICS", "VLLM_DEBUG_WORKSPACE", "VLLM_DEBUG_DUMP_PATH"),
        *("VLLM_PATTERN_MATCH_DEBUG", "VLLM_DISABLE_LOG_LOGO", "VLLM_PROCESS_NAME_PREFIX"),
        *("VLLM_RINGBUFFER_WARNING_INTERVAL", "VLLM_REQUEST_BODY_LOG_LEVEL"),
    ),
    works(
        FRONT,
        *("VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT", "VLLM_CHAT_TEMPLATE_FUEL"),
        *("VLLM_HTTP_MAX_REQUEST_BODY_SIZE", "VLLM_BEAM_ALWAYS_CONSTRAIN_OUTPUT"),
        *("VLLM_MAX_N_SEQUENCES", "VLLM_MAX_COMPLETION_PROMPTS", "VLLM_MAX_STOP_STRINGS"),
        *("VLLM_MAX_EMBED_DECODE_BYTES", "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS"),
        *("VLLM_ENFORCE_STRICT_TOOL_CALLING", "VLLM_TOOL_JSON_ERROR_AUTOMATIC_RETRY"),
        *("VLLM_USE_EXPERIMENTAL_PARSER_CONTEXT", "VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS"),
        *("VLLM_SYSTEM_START_DATE", "VLLM_USE_FASTOKENS", "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE"),
        *("VLLM_MSGPACK_ZERO_COPY_THRESHOLD", "VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS"),
    ),
    works(
        "grammars are made in host memory",
        *("VLLM_XGRAMMAR_CACHE_MB", "VLLM_V1_USE_OUTLINES_CACHE"),
    ),
    works("grammars are made in host memory; 2 by default", "VLLM_REGEX_COMPILATION_TIMEOUT_S"),
    works(
        MEDIA,
        *("VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES", "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB"),
        *("VLLM_IMAGE_FETCH_TIMEOUT", "VLLM_VIDEO_FETCH_TIMEOUT", "VLLM_AUDIO_FETCH_TIMEOUT"),
        *("VLLM_MEDIA_CACHE", "VLLM_MEDIA_CACHE_MAX_SIZE_MB", "VLLM_MEDIA_CACHE_TTL_HOURS"),
        *("VLLM_MEDIA_FETCH_MAX_RETRIES", "VLLM_MEDIA_LOADING_THREAD_COUNT"),
        *("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "VLLM_MAX_AUDIO_DECODE_DURATION_S"),
        *("VLLM_MAX_AUDIO_DECODE_BYTES", "VLLM_MAX_AUDIO_PREPROCESS_WORKERS"),
        "VLLM_MAX_IMAGE_PIXELS",
    ),
    works(f"{MEDIA}; 32 by default", "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB"),
    works(f"{MEDIA}; 0 by default", "VLLM_MEDIA_URL_ALLOW_REDIRECTS"),
    works(
        f"{KEPT}; on a host, the run's by default",
        *("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"),
    ),
    works(KEPT, "VLLM_ASSETS_CACHE", "VLLM_ASSETS_CACHE_MODEL_CLEAN"),
    works("what is compiled is compiled again at each start", "VLLM_DISABLE_COMPILE_CACHE"),
    works("threads and garbage collection of a start", "VLLM_TRITON_JIT_WARMUP_NUM_THREADS"),
    works("threads and garbage collection of a start", "VLLM_ENABLE_CUDAGRAPH_GC"),
    works("sizes of tiles inside of kernels", "VLLM_TUNED_CONFIG_FOLDER"),
    works(
        "kernels whose results do not depend on the batch; vLLM has them for some GPUs",
        "VLLM_BATCH_INVARIANT",
    ),
    works("sampling by FlashInfer; 0 where it is not installed", "VLLM_USE_FLASHINFER_SAMPLER"),
    works("code of others, of which fewer may be loaded", "VLLM_PLUGINS"),
    works("beside mirage serve --startup-timeout", "VLLM_ENGINE_READY_TIMEOUT_S"),
    works(
        "processors for an engine's threads; nobind by default, since engines share them",
        *("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU"),
    ),
    works(
        "an engine's address on this machine",
        *("VLLM_HOST_IP", "VLLM_LOOPBACK_IP"),
    ),
    works(
        NVIDIA,
        *("CUDA_HOME", "LD_LIBRARY_PATH", "VLLM_CUDART_SO_PATH", "VLLM_HAS_FLASHINFER_CUBIN"),
        *("VLLM_ENABLE_CUDA_COMPATIBILITY", "VLLM_CUDA_COMPATIBILITY_PATH"),
    ),
    works("which build of vLLM this is: it has to be one for device.kind", "VLLM_TARGET_DEVICE"),
    works(
        BUILD,
        *("VLLM_MAIN_CUDA_VERSION", "MAX_JOBS", "NVCC_THREADS", "VLLM_USE_PRECOMPILED"),
        *("VLLM_USE_PRECOMPILED_RUST", "VLLM_SKIP_PRECOMPILED_VERSION_SUFFIX"),
        *("VLLM_SKIP_VERSION_SUFFIX", "VLLM_DOCKER_BUILD_CONTEXT", "VLLM_BUILD_COMMIT"),
        *("VLLM_BUILD_PIPELINE", "VLLM_BUILD_URL", "VLLM_IMAGE_TAG", "CMAKE_BUILD_TYPE"),
        *("VERBOSE", "VLLM_TEST_FORCE_LOAD_FORMAT", "VLLM_USE_RUST_BENCH"),
        *("VLLM_RUST_FRONTEND_PATH", "VLLM_USAGE_SOURCE", "VLLM_USAGE_STATS_SERVER"),
        "VLLM_DO_NOT_TRACK",
    ),
    works(FOLDER, "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY", "S3_ENDPOINT_URL"),
    works(
        "no effect: other loaders than vLLM's own are refused", "VLLM_FASTSAFETENSORS_QUEUE_SIZE"
    ),
    works(
        "no effect: vLLM's own offloading is refused",
        *("VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY", "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA"),
        "VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS",
    ),
    works(
        "no effect: FlashInfer's autotuning is refused",
        *("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", "VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS"),
    ),
    works(
        "no effect: media are handed on without shared memory",
        "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME",
    ),
    works(
        ALONE,
        "VLLM_STEP5_SHARD_SP_SHARED_EXPERT",
        *("VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT", "VLLM_RANDOMIZE_DP_DUMMY_INPUTS"),
        *("VLLM_ELASTIC_EP_DRAIN_REQUESTS", "VLLM_NCCL_SO_PATH", "VLLM_NCCL_INCLUDE_PATH"),
        *("VLLM_USE_NCCL_SYMM_MEM", "VLLM_DISABLE_PYNCCL", "VLLM_SKIP_P2P_CHECK"),
        *("VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_ALLREDUCE_USE_FLASHINFER"),
        *("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "VLLM_FLASHINFER_ALLREDUCE_BACKEND"),
        *("VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE", "VLLM_DEEPEPLL_NVFP4_DISPATCH"),
        *("VLLM_DEEPEP_BUFFER_SIZE_MB", "VLLM_DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE"),
        *("VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL", "VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE"),
        *("VLLM_DEEPEP_V2_PREFER_OVERLAP", "VLLM_DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION"),
        *("VLLM_DBO_COMM_SMS", "VLLM_DCP_Q_REPLICATE", "VLLM_USE_DIRECT_DCP_A2A"),
        *("VLLM_USE_DIRECT_DCP_Q_GATHER", "VLLM_USE_DIRECT_DCP_KV_GATHER"),
        *("VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT", "VLLM_KIMI_K3_GEMM_AR", "VLLM_ENABLE_GEMM_RS"),
        *("VLLM_MQ_MAX_CHUNK_BYTES_MB", "VLLM_USE_SPINLOOP_EXT"),
        *("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "VLLM_GPU_NIC_PCIE_MAPPING"),
        "VLLM_NIC_SELECTION_VARS",
    ),
    works(
        NO_RAY,
        *("VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE", "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM"),
        *("VLLM_USE_RAY_WRAPPED_PP_COMM", "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"),
        *("VLLM_RAY_BUNDLE_INDICES", "VLLM_RAY_DP_PACK_STRATEGY"),
        *("VLLM_RAY_DP_PLACEMENT_NODE_IPS", "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"),
        *("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "VLLM_RAY_PER_WORKER_GPUS"),
    ),
    works(
        NOWHERE,
        *("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"),
        *("VLLM_P2P_SIDE_CHANNEL_HOST", "VLLM_P2P_SIDE_CHANNEL_PORT", "VLLM_P2P_MAX_PEERS"),
        *("VLLM_P2P_HANDSHAKE_TIMEOUT_S", "VLLM_P2P_IDLE_TIMEOUT_S"),
        *("VLLM_EC_SIDE_CHANNEL_HOST", "VLLM_EC_SIDE_CHANNEL_PORT"),
        *("VLLM_MOONCAKE_CONNECTOR_TIMEOUT", "VLLM_MOONCAKE_BOOTSTRAP_PORT"),
        *("VLLM_MOONCAKE_STORE_TIER_LOG", "VLLM_MOONCAKE_LOAD_RECV_THREADS"),
        *("VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"),
        *("MOONCAKE_PREFERRED_SEGMENT", "MOONCAKE_REQUESTER_LOCAL_HOSTNAME"),
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES",
    ),
    works(
        OTHERS,
        *("VLLM_ROCM_MUSE_MOE_ONLINE_QUANT", "VLLM_ROCM_MUSE_MOE_REDUCE_DTYPE"),
        *("VLLM_ROCM_SLEEP_MEM_CHUNK_SIZE", "VLLM_ROCM_USE_AITER"),
        *("VLLM_ROCM_USE_AITER_CUSTOM_AR", "VLLM_ROCM_USE_AITER_LINEAR"),
        *("VLLM_ROCM_USE_AITER_LINEAR_HIPBMM", "VLLM_ROCM_USE_AITER_MOE"),
        *("VLLM_ROCM_USE_AITER_MOE_SITUV2", "VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4"),
        *("VLLM_ROCM_AITER_MOE_DISPATCH_POLICY", "VLLM_ROCM_USE_AITER_RMSNORM"),
        *("VLLM_ROCM_USE_AITER_MLA", "VLLM_ROCM_AITER_MLA_DCP_VERIFY"),
        *("VLLM_ROCM_AITER_MLA_ASM_PADDING", "VLLM_ROCM_USE_AITER_MHA"),
        *("VLLM_ROCM_USE_AITER_FP4_ASM_GEMM", "VLLM_ROCM_USE_AITER_TRITON_SPARSE_MLA"),
        *("VLLM_ROCM_USE_AITER_TRITON_ROPE", "VLLM_ROCM_USE_AITER_FP8BMM"),
        *("VLLM_ROCM_USE_AITER_FP4BMM", "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION"),
        *("VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS", "VLLM_ROCM_MONO_DECODE"),
        *("VLLM_ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS", "VLLM_ROCM_USE_AITER_TRITON_GEMM"),
        *("VLLM_ROCM_USE_SKINNY_GEMM", "VLLM_ROCM_FP8_PADDING", "VLLM_ROCM_MOE_PADDING"),
        *("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"),
        *("VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16", "VLLM_ROCM_FP8_MFMA_PAGE_ATTN"),
        *("VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB", "VLLM_XPU_USE_SAMPLER_KERNEL"),
        *("VLLM_ROCM_QUICK_REDUCE_MIN_SIZE_BYTES_MB", "VLLM_XPU_INC_WNA16_BACKEND"),
        *("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB", "VLLM_XPU_PP_MICROBATCH"),
        *("VLLM_XPU_FORCE_N_CONTIG_WEIGHT", "VLLM_XLA_CACHE_PATH", "VLLM_XLA_USE_SPMD"),
        *("VLLM_XLA_CHECK_RECOMPILATION", "VLLM_TPU_USING_PATHWAYS"),
    ),
    # -- what is refused, but for the values named with it ---------------------------------
    # the KV cache and other memory
    refused(ELASTIC, "VLLM_KV_CACHE_LAYOUT"),
    refused(ELASTIC, "VLLM_CPU_KVCACHE_SPACE", but=("0",)),
    refused(ELASTIC, "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE", but=("1",)),
    refused(STATE, "VLLM_SSM_CONV_STATE_LAYOUT"),
    refused(
        "it sizes memory that MIRAGE sizes",
        "VLLM_ENABLE_STARTUP_PLAN",
        but=("0",),
    ),
    refused(
        "it sizes memory that MIRAGE sizes",
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
        but=("1",),
    ),
    refused(UNCOUNTED, "VLLM_MAX_NUM_BAD_WORDS", but=("128",)),
    refused(UNCOUNTED, "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS", but=("1024",)),
    refused(UNCOUNTED, "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", but=("512",)),
    refused(UNCOUNTED, "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", but=("413138944",)),
    refused(UNCOUNTED, "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", but=("163840",)),
    refused(KV_ELSEWHERE, "VLLM_USE_SIMPLE_KV_OFFLOAD", but=("0",)),
    refused(NOT_TRIED, "VLLM_WSL2_ENABLE_PIN_MEMORY", but=("0",)),
    # how steps run
    refused(
        "vLLM chooses its model runner by what it can do, and another was not tried",
        "VLLM_USE_V2_MODEL_RUNNER",
        but=("0",),
    ),
    refused(
        EAGER,
        *("VLLM_USE_BREAKABLE_CUDAGRAPH", "VLLM_FORCE_AOT_LOAD", "VLLM_USE_AOT_COMPILE"),
        but=("0",),
    ),
    refused(
        COMPILER,
        *("VLLM_USE_STANDALONE_COMPILE", "VLLM_ENABLE_PREGRAD_PASSES", "VLLM_USE_BYTECODE_HOOK"),
        *("VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE", "VLLM_USE_LAYERNAME"),
        "VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING",
        but=("1",),
    ),
    refused(COMPILER, "VLLM_USE_MEGA_AOT_ARTIFACT"),
    refused(
        "engines share what is compiled, and this form is for one process alone",
        "VLLM_COMPILE_CACHE_SAVE_FORMAT",
        but=("binary",),
    ),
    # kernels
    refused(PACKS, "VLLM_USE_HW_AGNOSTIC", but=("0", "false")),
    refused(
        PACKS,
        *("VLLM_USE_TRITON_AWQ", "VLLM_MARLIN_USE_ATOMIC_ADD", "VLLM_B12X_MOE_FP4_FORCE_A16"),
        *("VLLM_USE_FLASHINFER_MOE_INT4", "VLLM_HUMMING_USE_F16_ACCUM"),
        but=("0",),
    ),
    refused(PACKS, "VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD", but=("0", "false")),
    refused(PACKS, "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD", but=("1", "true")),
    refused(
        PACKS,
        *("VLLM_USE_DEEP_GEMM", "VLLM_MOE_USE_DEEP_GEMM", "VLLM_USE_DEEP_GEMM_E8M0"),
        *("VLLM_USE_DEEP_GEMM_TMA_ALIGNED_SCALES", "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER"),
        *("VLLM_ZENTORCH_WEIGHT_PREPACK", "VLLM_CPU_INT4_W4A8"),
        but=("1",),
    ),
    refused(
        PACKS,
        *("VLLM_DISABLED_KERNELS", "VLLM_MARLIN_INPUT_DTYPE", "VLLM_HUMMING_ONLINE_QUANT_CONFIG"),
        *("VLLM_HUMMING_INPUT_QUANT_CONFIG", "VLLM_HUMMING_MOE_GEMM_TYPE"),
    ),
    refused(
        KERNELS,
        *("VLLM_MLA_DISABLE", "VLLM_ENABLE_HPC_OPS", "VLLM_DISABLE_SHARED_EXPERTS_STREAM"),
        *("VLLM_DISABLE_DSV4_MEGAMOE_SHARED_EXPERT_FUSION", "VLLM_KIMI_K3_AUX_ATTN_RES_STREAM"),
        *("VLLM_TRITON_FORCE_FIRST_CONFIG", "VLLM_REPLICATE_EMBED"),
        but=("0",),
    ),
    refused(KERNELS, "VLLM_USE_OINK_OPS", but=("0", "false")),
    refused(
        KERNELS,
        *("VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE", "VLLM_CPU_ATTN_SPLIT_KV"),
        *("VLLM_USE_FUSED_MOE_GROUPED_TOPK", "VLLM_MOE_SKIP_PADDING"),
        but=("1",),
    ),
    refused(KERNELS, "VLLM_FLOAT32_MATMUL_PRECISION", but=("highest",)),
    refused(KERNELS, "VLLM_GDN_DECODE_KERNEL", but=("cuda",)),
    refused(KERNELS, "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD", but=("256",)),
    refused(KERNELS, "VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD", but=("1024",)),
    refused(KERNELS, "VLLM_COHERE2_ATTN_MOE_DUAL_STREAM_TOKEN_THRESHOLD", but=("256",)),
    refused(KERNELS, "VLLM_TRITON_USE_TD"),
    refused(
        "a kernel that is compiled late was not tried", "VLLM_DEEP_GEMM_WARMUP", but=("relax",)
    ),
    refused("it gives wrong text, for measurements", "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"),
    refused(NOT_TRIED, "VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN", but=("8192",)),
    refused(NOT_TRIED, "VLLM_COMPUTE_NANS_IN_LOGITS", "VLLM_RAISE_ON_LOGIT_NANS", but=("0",)),
    refused(
        LORA,
        *("VLLM_LORA_DISABLE_PDL", "VLLM_LORA_ENABLE_DUAL_STREAM"),
        but=("0",),
    ),
    # engines and their processes
    refused(
        "an engine's death must end its server, or nobody would start it again",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",
        but=("0",),
    ),
    refused(ENDS, "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", but=("5",)),
    refused("engine and server are two processes", "VLLM_ENABLE_V1_MULTIPROCESSING", but=("1",)),
    refused(NOT_TRIED, "VLLM_WORKER_MULTIPROC_METHOD", but=("fork",)),
    refused(
        "engines take free ports, and would all begin at this one; Kubernetes sets it for a "
        "service named vllm (enableServiceLinks: false)",
        "VLLM_PORT",
    ),
    refused(ONE_GPU, "VLLM_DP_SIZE", but=("1",)),
    refused(
        ONE_GPU,
        *("VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL", "LOCAL_RANK", "VLLM_ELASTIC_EP_SCALE_UP_LAUNCH"),
        "VLLM_DISTRIBUTED_USE_SPLIT_GROUP",
        but=("0",),
    ),
    refused(ONE_GPU, "VLLM_PP_LAYER_PARTITION"),
    refused(
        PROFILING,
        *("VLLM_CUSTOM_SCOPES_FOR_PROFILING", "VLLM_NVTX_SCOPES_FOR_PROFILING"),
        but=("0",),
    ),
    refused(PROFILING, "VLLM_GPU_SYNC_CHECK"),
    refused("a line for every call fills the run's folder", "VLLM_TRACE_FUNCTION", but=("0",)),
    refused("it leaves out what a start warms up", "VLLM_CPU_CI_ENV", but=("0",)),
    # the front
    refused(KEYS, "VLLM_API_KEY"),
    refused(
        "vLLM's development routes let anybody put engines to sleep, reset and profile them",
        "VLLM_SERVER_DEV_MODE",
        but=("0",),
    ),
    refused("another front end than the one MIRAGE starts", "VLLM_USE_RUST_FRONTEND", but=("0",)),
    refused(
        "nobody could fetch what is stored, as the router has no route for it, and vLLM keeps all "
        "of it in memory for good",
        "VLLM_ENABLE_RESPONSES_API_STORE",
        but=("0",),
    ),
    refused(NO_ROUTE, "VLLM_ENABLE_COHERE_API", but=("0",)),
    refused(
        "a wrong name of an adapter would be answered by its model",
        "VLLM_SKIP_MODEL_NAME_VALIDATION",
        but=("0", "false"),
    ),
    refused(
        "two requests with one X-Request-Id would be taken for one",
        "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION",
        but=("0",),
    ),
    refused(
        "code could come in a message between vLLM's processes",
        "VLLM_ALLOW_INSECURE_SERIALIZATION",
        but=("0",),
    ),
    refused(
        "code of others that fetches media would go past allowed_media_domains",
        "VLLM_MEDIA_CONNECTOR",
        but=("http",),
    ),
    refused(NOT_TRIED, "VLLM_VIDEO_LOADER_BACKEND", but=("opencv",)),
    # the model
    refused(
        "positions beyond those that a model was made for end its engine, or give wrong text",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        but=("0", "false"),
    ),
    refused("models are local folders", "VLLM_MODEL_REDIRECT_PATH"),
    refused("models are local folders", "VLLM_USE_MODELSCOPE", but=("0", "false")),
    refused(DECLARED, "VLLM_ALLOW_RUNTIME_LORA_UPDATING", but=("0", "false")),
    refused(DECLARED, "VLLM_LORA_RESOLVER_CACHE_DIR", "VLLM_LORA_RESOLVER_HF_REPO_LIST"),
)
"""Rule of each environment variable that vLLM reads."""
