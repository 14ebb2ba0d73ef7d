"""Parameter memory becomes KV cache: several LLMs on one GPU, inside unmodified vLLM."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("mirage-kv")
except PackageNotFoundError:  # the tree alone, not installed
    __version__ = "0+unknown"
