"""vLLM's own check of a server's command line, and of the configuration that results from it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NoReturn

from vllm.config import CompilationMode, CUDAGraphMode
from vllm.exceptions import VLLMError
from vllm.utils.argparse_utils import FlexibleArgumentParser

from mirage.arguments.check import ArgumentRefused
from mirage.arguments.table import (
    DRAFT,
    DRAFTED,
    DRAFTED_LORA,
    EAGER,
    KV_DTYPES,
    KV_ELSEWHERE,
    MLA_FP8,
    NOT_TRIED,
    OFFLOAD,
    ONE_GPU,
    SLEEP,
)
from mirage.engine import kernels, moved
from mirage.problems import nearest, shown

MOST_DRAFTED = 128
"""Largest number of drafted tokens in a step: vLLM's `MAX_SPEC_LEN`, repeated here because the
module that has it imports vLLM's engine."""


COMPILED = (
    CompilationMode.VLLM_COMPILE,
    CompilationMode.DYNAMO_TRACE_ONCE,  # what a CPU makes of it
    CompilationMode.NONE,  # and with adapters
)
BACKENDS = ("", "inductor", "eager")
"""Compilers of vLLM's that MIRAGE was tried with; "" leaves the choice to vLLM."""


class _Parser(FlexibleArgumentParser):
    """Parser that raises where vLLM's prints its usage and ends the process."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentRefused(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise ArgumentRefused(message or "it prints a page and ends")


@cache
def server_parser() -> FlexibleArgumentParser:
    """Return the argument parser of the OpenAI server of the installed vLLM."""
    parser: FlexibleArgumentParser = moved.server_arguments(_Parser(allow_abbrev=False))
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse `argv`, the arguments of vLLM's server without the program and module before them.

    Raise `ArgumentRefused`, with vLLM's message in one line, if vLLM would refuse them.
    """
    try:
        args = server_parser().parse_args(argv)
        if (word := args.model_tag) is not None:
            raise ArgumentRefused(f"{word!r} belongs to no argument: check the one before it")
        moved.check_server_arguments(args)
        _import_parsers(args)
        _check_tokenizer(args.tokenizer_mode)
        moved.check_parsers(args)
    except (VLLMError, ValueError, TypeError, LookupError, OSError) as error:
        raise ArgumentRefused(_one_line(error)) from None
    return args


def misfit(given: Mapping[str, Any], args: argparse.Namespace) -> str | None:
    """Return the reason if vLLM has read a list or mapping among the values of `engine_args`
    (`given`, by vLLM's names) as something else; None if it has read all as they were written.

    MIRAGE passes the values on a command line, which has words alone. If vLLM does not expect a
    list or mapping there, a list with one entry becomes this entry, and a mapping becomes text.
    """
    for name, value in given.items():
        if _reshaped(value, read := getattr(args, name, value)):
            wanted = "keys with values" if isinstance(read, dict) else "one value"
            return f"engine_args.{name}: found {shown(value)}, write {wanted}"
    return None


def _reshaped(value: Any, read: Any) -> bool:
    """True if `value`, which vLLM read as `read`, or one of its entries is no longer the list or
    mapping that it was."""
    plain = read is None or isinstance(read, str | int | float)
    if isinstance(value, list) and isinstance(read, list) and len(value) == len(read):
        return any(map(_reshaped, value, read))
    return isinstance(value, list | dict) and plain


def _import_parsers(args: argparse.Namespace) -> None:
    """Import the parser plugins that the arguments name, as the server does before it looks them up
    by name."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)


def _check_tokenizer(mode: str) -> None:
    """Raise `ArgumentRefused` for an unknown tokenizer mode, which vLLM checks only once the engine
    has started."""
    from vllm.tokenizers.registry import TokenizerRegistry

    known = {"auto", *TokenizerRegistry.tokenizers}
    if mode not in known:
        raise ArgumentRefused(
            f"engine_args.tokenizer_mode: {mode!r} is none of {', '.join(sorted(known))}"
        )


def _one_line(error: Exception) -> str:
    words = " ".join(str(error.args[0] if error.args else error).split())
    if unknown := re.match(r"unrecognized arguments: (?:--no-|--)?([^= ]+)", words):
        name = unknown[1].replace("-", "_")
        known = sorted({action.dest for action in server_parser()._actions})
        return f"engine_args.{name}: this vLLM knows no such argument{nearest(name, known)}"
    return re.sub(
        r"^argument --([a-z0-9-]+)[^:]*: ",
        lambda found: f"engine_args.{found[1].replace('-', '_')}: ",
        words,
    )


def verify(vllm_config: Any) -> str | None:
    """Return the reason why this effective configuration could give wrong text, or fail, under
    MIRAGE; None if it is fine.

    Its origin does not matter: arguments, the model's folder, or the environment.
    """
    return next(_problems(vllm_config), None)


def _problems(config: Any) -> Iterator[str]:
    yield from _compilation(config)
    yield from _parallel(config.parallel_config)
    yield from _memory(config)
    if config.device_config.device_type == "cpu":
        yield from _on_cpu(config)
    cache, speculative = config.cache_config, config.speculative_config
    if cache.cache_dtype not in KV_DTYPES:
        yield f"kv_cache_dtype {cache.cache_dtype}: {NOT_TRIED}"
    if speculative is not None and speculative.method not in DRAFTED:
        yield f"speculative decoding by {speculative.method}: {DRAFT}"
    if speculative is not None and speculative.num_speculative_tokens > MOST_DRAFTED:
        drafted = speculative.num_speculative_tokens
        yield f"num_speculative_tokens {drafted}: vLLM verifies {MOST_DRAFTED} at most in a step"
    if not 0 <= config.model_config.seed < 1 << 32:
        yield f"seed {config.model_config.seed}: engines take 0 to 2**32 - 1"
    if config.model_config.renderer_num_workers < 1:
        workers = config.model_config.renderer_num_workers
        yield f"renderer_num_workers {workers}: the server takes 1 and more"
    for name in ("watermark_config", "diffusion_config", "engram_config"):
        if getattr(config, name, None) is not None:
            yield f"{name}: {NOT_TRIED}"


def _on_cpu(config: Any) -> Iterator[str]:
    """Yield reasons why an engine on a CPU would start and then end at the first request or
    before."""
    cache, speculative = config.cache_config, config.speculative_config
    if config.model_config.use_mla and cache.cache_dtype.startswith("fp8"):
        yield f"kv_cache_dtype {cache.cache_dtype}: {MLA_FP8}"
    elif why := kernels.unread(config):
        yield f"kv_cache_dtype {cache.cache_dtype}: {why}"
    drafts = speculative is not None and speculative.method != "ngram"
    if drafts and config.lora_config is not None:
        yield f"enable_lora with speculative decoding by {speculative.method}: {DRAFTED_LORA}"


def _compilation(config: Any) -> Iterator[str]:
    """Yield reasons why steps would be compiled or captured otherwise than MIRAGE's settings say.
    By these settings it is decided where steps wait for layers."""
    compilation = config.compilation_config
    mirage = (config.additional_config or {}).get("mirage") or {}
    if compilation.mode not in (COMPILED if mirage.get("compiled") else (CompilationMode.NONE,)):
        yield f"compilation mode {compilation.mode}: {EAGER}"
    if mirage.get("compiled") and compilation.backend not in BACKENDS:
        yield f"compilation backend {compilation.backend}: {NOT_TRIED}"
    pieces = compilation.splitting_ops_contain_attention()
    if compilation.mode == CompilationMode.VLLM_COMPILE and not pieces:
        yield "splitting_ops: attention must not be compiled, for layers are waited for there"
    graphs = mirage.get("device") == "cuda" and mirage.get("pieces")
    if compilation.cudagraph_mode not in (None, CUDAGraphMode.NONE) and not graphs:
        yield f"cudagraph_mode {compilation.cudagraph_mode}: {EAGER}"


def _parallel(parallel: Any) -> Iterator[str]:
    sizes = ("tensor", "pipeline", "data", "decode_context", "prefill_context")
    for name in [f"{size}_parallel_size" for size in sizes] + ["world_size", "nnodes"]:
        if (size := getattr(parallel, name, 1)) != 1:
            yield f"{name} {size}: {ONE_GPU}"
    for name in ("enable_dbo", "enable_eplb", "enable_elastic_ep", "enable_fault_tolerance"):
        if getattr(parallel, name, False):
            yield f"{name}: {ONE_GPU}"
    if parallel.worker_extension_cls:
        yield f"worker_extension_cls {parallel.worker_extension_cls}: {NOT_TRIED}"


def _memory(config: Any) -> Iterator[str]:
    """Yield a reason for each feature of vLLM's own that moves weights or KV blocks, or gives
    memory away while the engine sleeps."""
    model, offload = config.model_config, config.offload_config
    if model.enable_sleep_mode or getattr(model, "enable_cumem_allocator", False):
        yield f"enable_sleep_mode or enable_cumem_allocator: {SLEEP}"
    if offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size:
        yield f"weight offloading: {OFFLOAD}"
    for name in ("kv_transfer_config", "kv_events_config", "ec_transfer_config"):
        if getattr(config, name, None) is not None:
            yield f"{name}: {KV_ELSEWHERE}"
    if config.cache_config.kv_offloading_size:
        yield f"kv_offloading_size: {KV_ELSEWHERE}"
    if getattr(config, "weight_transfer_config", None) is not None:
        yield f"weight_transfer_config: {NOT_TRIED}"
