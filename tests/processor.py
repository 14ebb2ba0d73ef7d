"""Kernels that vLLM lacks on some processors: AVX2 has the fewest, only AMX has all."""

from __future__ import annotations

MISSING = (
    "cpu_gemm_wna16",
    "FP8 KV cache on CPU requires x86 with AVX-512",
    "requires AMX tile support",
)
"""Parts of messages of vLLM and of our check, that a kernel is missing: for four-bit weights, for a
KV cache of eight bits, for weights of eight bits.
"""


def lacks_kernel(said: object) -> bool:
    """True if the message says that vLLM has no kernel for this processor."""
    return any(words in str(said) for words in MISSING)
