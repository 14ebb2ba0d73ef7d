"""Kernels that vLLM lacks on some processors: AVX2 has fewest, and only AMX has all."""

from __future__ import annotations

MISSING = (
    "cpu_gemm_wna16",
    "FP8 KV cache on CPU requires x86 with AVX-512",
    "requires AMX tile support",
)
"""In what vLLM and our check say: of four-bit weights, of a KV cache and weights of eight bits."""


def lacks_kernel(said: object) -> bool:
    """Whether an engine ended for that alone."""
    return any(words in str(said) for words in MISSING)
