"""Functions of vLLM whose place or arguments differ between 0.32 and later versions."""

from __future__ import annotations

import argparse
from typing import Any


def server_arguments(parser: Any) -> Any:
    """Return `parser` with the arguments of vLLM's OpenAI server."""
    # Not at the top: every engine imports what imports this, and this import takes seconds.
    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    except ImportError:  # 0.32
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    return make_arg_parser(parser)


def check_server_arguments(args: argparse.Namespace) -> None:
    """Raise the errors that vLLM's command line raises before parsers of plugins are known."""
    try:
        from vllm.entrypoints.common.cli_args import validate_parsed_serve_args
    except ImportError:  # 0.32
        from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args
    validate_parsed_serve_args(args)


def check_parsers(args: argparse.Namespace) -> None:
    """Raise the errors that vLLM's server raises for parsers that are not registered."""
    try:
        from vllm.entrypoints.common.cli_args import validate_api_server_args
    except ImportError:  # 0.32
        from vllm.entrypoints.launchers.launcher import validate_api_server_args
    validate_api_server_args(args)


def kv_cache_config(config: Any, specs: dict[str, Any], nbytes: int) -> Any:
    """Return vLLM's KVCacheConfig for a KV cache of `nbytes` bytes in one worker; `specs` are the
    KV cache specs of layers, by name."""
    try:
        from vllm.v1.core.kv_cache_planning import get_global_kv_cache_groups, get_kv_cache_configs
    except ImportError:  # 0.32
        from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

        return get_kv_cache_configs(config, [specs], [nbytes])[0]
    else:
        groups = get_global_kv_cache_groups(config, [specs])
        return get_kv_cache_configs(config, [specs], [nbytes], groups)[0]
