"""Table of the CPU kernels that vLLM chooses, by class of processor (pure).

vLLM's wheel for x86 has three extensions, and its Python code asks torch for the features of the
processor wherever there is a choice. The table holds the results. An engine does not read it: there
vLLM's own conditions decide, and tests compare the table with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

FLOAT, HALF, BRAIN, BYTE = "float32", "float16", "bfloat16", "int8"
ITEM_BYTES = {FLOAT: 4, HALF: 2, BRAIN: 2, BYTE: 1}
SMALL_BYTES = 1 << 20
"""Largest matrix in bytes that AMX kernels (sgl) take; oneDNN takes larger ones also on AMX."""
TILE_ROWS, TILE_COLUMNS = 16, 32
WIDE_BLOCK, HEAD_PART = 32, 16
"""Units of vLLM's attention kernels: `WIDE_BLOCK` tokens of a block, and `HEAD_PART`, of which a
head's size is a multiple.
"""


class Processor(StrEnum):
    """Classes of processor for which vLLM chooses different kernels, by names that users know."""

    AVX2 = "AVX2"
    AVX512 = "AVX-512"
    AVX512_BF16 = "AVX-512 with bf16"
    AMX = "AMX"
    ARM = "Arm"


class Linear(StrEnum):
    """Library that multiplies by a matrix, and therefore packs it in its own layout."""

    ONEDNN = "oneDNN"
    SGL = "sgl"
    ZEN = "zentorch"


@dataclass(frozen=True)
class Kernels:
    """Kernels that vLLM chooses on one class of processor."""

    extension: str
    """Module that has the compiled kernels."""
    attention: str
    """Instructions of attention for blocks of a multiple of 32 tokens; bfloat16 uses
    `brain_attention`.
    """
    brain_attention: str
    experts: str
    """Kernel of a mixture's experts in bfloat16."""
    latent: str
    """Attention backend of models with latent attention."""
    tiles: frozenset[str] = frozenset()
    """Types of small matrices for which there are AMX kernels (sgl)."""
    packs_layers: bool = False
    """True if our engines pack bfloat16 matrices of layers that move, for sgl's kernels."""
    packs_convolutions: bool = False
    """True if convolutions of state-space layers in bfloat16 are packed; a plain copy is kept
    beside.
    """
    eight_bit_kv: bool = True
    """True if attention reads a KV cache of eight bits."""
    four_bits: bool = True
    """True if there is a kernel for weights of four bits."""


_LATENT = "CPU_MLA"
TABLE: Mapping[Processor, Kernels] = MappingProxyType(
    {
        Processor.AVX2: Kernels(
            "_C_AVX2", "vec", "vec", "vec", _LATENT, eight_bit_kv=False, four_bits=False
        ),
        Processor.AVX512: Kernels("_C_AVX512", "vec", "vec", "vec", _LATENT),
        Processor.AVX512_BF16: Kernels(
            "_C", "vec", "vec", "vec", _LATENT, packs_layers=True, packs_convolutions=True
        ),
        Processor.AMX: Kernels(
            *("_C", "vec", "amx", "amx", "AMX_MLA", frozenset({BRAIN, BYTE})),
            packs_layers=True,
            packs_convolutions=True,
        ),
        Processor.ARM: Kernels(
            "_C", "neon", "neon", "neon", _LATENT, packs_convolutions=True, eight_bit_kv=False
        ),
    }
)


def class_of(machine: str, flags: Collection[str]) -> Processor | None:
    """Class of a processor by its machine name and flags of /proc/cpuinfo; None if vLLM has no
    kernels for it.

    Every Arm processor counts as one with bf16, whatever its flags.
    """
    if machine in ("aarch64", "arm64"):
        return Processor.ARM
    if machine not in ("x86_64", "AMD64") or "avx2" not in flags:
        return None
    if "avx512f" not in flags:
        return Processor.AVX2
    if "avx512_bf16" not in flags:
        return Processor.AVX512
    return Processor.AMX if "amx_tile" in flags else Processor.AVX512_BF16


def linear(kernels: Kernels, rows: int, columns: int, dtype: str, *, zen: bool = False) -> Linear:
    """Library that multiplies by an unquantised matrix [rows, columns], and therefore packs it.

    `zen`: the processor is a Zen, and zentorch is installed.
    """
    if zen:
        return Linear.ZEN
    if dtype not in kernels.tiles or rows * columns * ITEM_BYTES[dtype] > SMALL_BYTES:
        return Linear.ONEDNN
    return Linear.SGL if rows < TILE_ROWS or _tiled(rows, columns) else Linear.ONEDNN


def of_layers(kernels: Kernels, rows: int, columns: int, dtype: str) -> Linear | None:
    """Library that multiplies by an unquantised matrix [rows, columns] of layers that move.

    None: its weight stays plain, and torch multiplies.
    """
    packs = kernels.packs_layers and dtype == BRAIN and _tiled(rows, columns)
    return Linear.SGL if packs else None


def int8(kernels: Kernels, rows: int, columns: int, *, symmetric: bool) -> Linear:
    """Library that multiplies by a matrix of eight bits; `symmetric`: its inputs have no zero
    point.

    A matrix packed by sgl is an ordinary parameter. oneDNN keeps its packed matrix inside the
    library.
    """
    fits = BYTE in kernels.tiles and symmetric and _tiled(rows, columns)
    return Linear.SGL if fits else Linear.ONEDNN


def attention(kernels: Kernels, head: int, dtype: str, block_tokens: int) -> str:
    """vLLM's name of the instructions that attention uses; they determine the layout of KV
    blocks.
    """
    if head % (2 * HEAD_PART) and not head % HEAD_PART:
        return "vec16"
    wide = block_tokens % WIDE_BLOCK == 0
    if kernels.attention == "neon":
        return kernels.attention
    if not wide:
        return "vec16"
    return kernels.brain_attention if dtype == BRAIN else kernels.attention


def words(processor: Processor) -> str:
    """Summary of a processor's kernels for users, in one line."""
    kernels = TABLE[processor]
    said = [f"vLLM's kernels vllm.{kernels.extension}", f"attention {kernels.brain_attention}"]
    if kernels.tiles:
        said.append("small matrices packed for AMX")
    if not kernels.eight_bit_kv:
        said.append("no KV cache of eight bits")
    if not kernels.four_bits:
        said.append("no weights of four bits")
    return f"{processor}: {', '.join(said)}"


def _tiled(rows: int, columns: int) -> bool:
    return columns % TILE_COLUMNS == 0 and rows % TILE_ROWS == 0
