"""Makes a class of processor of the one at hand, for whatever asks torch: vLLM's conditions.

`python -m tests.kinds NAME MODULE WORDS...` runs a module as on that class. Nothing that is given
here makes a processor compute what it cannot: see `without_tiles`.
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
"""Its value is a name of `FEATURES`; a script's process is on that class from its beginning."""
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
    """The class of this processor; None for one that is not x86."""
    kind = class_of(platform.machine(), host._flags())
    return next((name for name in ORDER if PROCESSORS[name] is kind), None)


def runs_here(name: str) -> bool:
    """True if engines can run as on that class: on one below this, or on AMX without its tiles."""
    if (mine := here()) is None:
        return False
    return ORDER.index(name) <= max(ORDER.index(mine), ORDER.index("amx") * (mine == "avx512_bf16"))


def environment(name: str) -> dict[str, str]:
    """Environment of a new process that shall be on that class."""
    return {VARIABLE: name, **LIMITS.get(name, {})}


def become(name: str, put: Put = setattr) -> None:
    """What torch says of the processor from now on. `put` may be monkeypatch's `setattr`."""
    import torch

    for predicate, answer in zip(PREDICATES, FEATURES[name], strict=True):
        put(torch.cpu, predicate, lambda answer=answer: answer)
    if name == "arm":
        put(torch.cpu, "get_capabilities", lambda: {"bf16": True})


def without_tiles(put: Put = setattr) -> None:
    """Let vLLM pack as on AMX and compute without its tiles, which would be illegal instructions.

    Matrices need nothing: torch's brgemm multiplies packed ones on AVX-512 with bf16 as well.
    """
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
    """Become what `VARIABLE` says; before vLLM is imported, if that is below AVX-512 with bf16."""
    if (name := os.environ.get(VARIABLE)) is not None:
        become(name)


def extension() -> str:
    """The extension with vLLM's kernels that is in this process."""
    lines = Path("/proc/self/maps").read_text().split()
    (found,) = {Path(word).name.partition(".")[0] for word in lines if "/vllm/_C" in word}
    return found


if __name__ == "__main__":
    name, module, *words = sys.argv[1:]
    become(name)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
