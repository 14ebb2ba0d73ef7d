"""Makes torch, and so vLLM, choose kernels as on another class of processors than this machine's.

`python -m tests.kinds NAME MODULE WORDS...` runs a module so. The processor cannot compute more
than before: see `without_tiles`.
"""

from __future__ import annotations

import os
import platform
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirage.doctor import host
from mirage.processors import Processor, class_of

VARIABLE = "MIRAGE_TEST_PROCESSOR"
"""Environment variable: a name of `FEATURES`. A script acts as on that class from its beginning."""
PREDICATES = (
    "_is_avx512_supported",
    "_is_avx512_bf16_supported",
    "_is_amx_tile_supported",
    "_is_amx_fp16_supported",
)
FEATURES: dict[str, tuple[bool, bool, bool, bool]] = {
    "avx2": (False, False, False, False),
    "avx512": (True, False, False, False),
    "avx512_bf16": (True, True, False, False),
    "amx": (True, True, True, False),
    "arm": (False, False, False, False),
}
"""Answers of torch's `PREDICATES`; AMX as in Sapphire and Emerald Rapids, without FP16."""
PROCESSORS = dict(zip(FEATURES, Processor, strict=True))

ORDER = ("avx2", "avx512", "avx512_bf16", "amx")
"""Classes of x86: each can do what those before it can."""
LIMITS = {
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512"},
    "avx512_bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ATEN_CPU_CAPABILITY": "avx512"},
}
"""Environment that keeps oneDNN and torch themselves from more than a class can do."""

Put = Callable[[Any, str, Any], None]


def here() -> str | None:
    """Class of this processor; None for one that is not x86."""
    kind = class_of(platform.machine(), host._flags())
    return next((name for name in ORDER if PROCESSORS[name] is kind), None)


def runs_here(name: str) -> bool:
    """True if engines can run here with the kernels of class `name`: this processor's own class,
    one that can do less, or AMX without its tiles on AVX-512 with bf16.
    """
    if (mine := here()) is None:
        return False
    return ORDER.index(name) <= max(ORDER.index(mine), ORDER.index("amx") * (mine == "avx512_bf16"))


def environment(name: str) -> dict[str, str]:
    """Environment variables of a new process that is to use the kernels of class `name`."""
    return {VARIABLE: name, **LIMITS.get(name, {})}


def become(name: str, put: Put = setattr) -> None:
    """Make torch's questions about the processor be answered as on class `name` from now on. `put`
    may be monkeypatch's `setattr`.
    """
    import torch

    for predicate, answer in zip(PREDICATES, FEATURES[name], strict=True):
        put(torch.cpu, predicate, lambda answer=answer: answer)
    if name == "arm":
        put(torch.cpu, "get_capabilities", lambda: {"bf16": True})


def without_tiles(put: Put = setattr) -> None:
    """Let vLLM pack as on AMX but compute without AMX's tiles, which would be illegal instructions
    here.

    Matrices need no change, because torch's brgemm multiplies packed ones also on AVX-512 with
    bf16. On AMX itself the tiles are used.
    """
    if here() == "amx":
        return
    from vllm.model_executor.kernels.linear.mixed_precision import cpu as four_bits
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe
    from vllm.v1.attention.backends import cpu_attn

    isa = cpu_attn._get_attn_isa

    def attention(*args: Any, **kwargs: Any) -> str:
        found = isa(*args, **kwargs)
        return "vec" if found == "amx" else found

    put(cpu_attn, "_get_attn_isa", attention)
    put(four_bits, "_get_isa_hint", lambda dtype: "vec")
    put(cpu_moe.X86CPUUnquantizedExperts, "isa", "vec")


def from_environment() -> None:
    """Act as on the class that `VARIABLE` names. If that is below AVX-512 with bf16, it must happen
    before vLLM is imported.
    """
    if (name := os.environ.get(VARIABLE)) is not None:
        become(name)


def extension() -> str:
    """Name of the extension with vLLM's kernels that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().split()
    (found,) = {Path(word).name.partition(".")[0] for word in lines if "/vllm/_C" in word}
    return found


if __name__ == "__main__":
    name, module, *words = sys.argv[1:]
    become(name)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
