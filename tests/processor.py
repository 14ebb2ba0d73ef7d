"""What vLLM has no kernel for on some processors: its builds for AVX2 have fewer than others."""

from __future__ import annotations

MISSING = ("cpu_gemm_wna16", "FP8 KV cache on CPU requires x86 with AVX-512")
"""In what vLLM and our check say then: of four-bit weights, and of a KV cache of eight bits."""


def lacks_kernel(said: object) -> bool:
    """Whether an engine ended for that alone."""
    return any(words in str(said) for words in MISSING)
