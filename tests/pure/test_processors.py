"""The table of kernels by class of processor: the classes, and the lines about them."""

from __future__ import annotations

import pytest

from mirage.processors import (
    BRAIN,
    BYTE,
    FLOAT,
    HALF,
    TABLE,
    Linear,
    Processor,
    attention,
    class_of,
    int8,
    linear,
    words,
)

pytestmark = pytest.mark.pure

AVX2 = {"fma", "avx2"}
AVX512 = AVX2 | {"avx512f", "avx512bw"}
BF16 = AVX512 | {"avx512_bf16"}
TILES = BF16 | {"amx_tile", "amx_bf16", "amx_int8"}


@pytest.mark.parametrize(
    ("machine", "flags", "kind"),
    [
        ("x86_64", AVX2, Processor.AVX2),
        ("x86_64", AVX512, Processor.AVX512),
        ("x86_64", BF16, Processor.AVX512_BF16),
        ("x86_64", TILES, Processor.AMX),
        ("aarch64", set(), Processor.ARM),
        ("x86_64", {"sse4_2"}, None),
        ("ppc64le", set(), None),
    ],
)
def test_a_class_follows_from_the_flags_of_linux(
    machine: str, flags: set[str], kind: Processor | None
) -> None:
    assert class_of(machine, flags) == kind


def test_every_class_is_in_the_table_and_has_its_words() -> None:
    assert set(TABLE) == set(Processor)
    assert len({words(kind) for kind in Processor}) == len(Processor)
    assert "small matrices packed for AMX" in words(Processor.AMX)
    assert "no weights of four bits" in words(Processor.AVX2)


@pytest.mark.parametrize("kind", list(Processor))
def test_only_amx_has_small_matrices_packed_by_sgl(kind: Processor) -> None:
    small = linear(TABLE[kind], 128, 128, BRAIN)
    assert small == (Linear.SGL if kind is Processor.AMX else Linear.ONEDNN)
    assert linear(TABLE[kind], 128, 128, BRAIN, zen=True) is Linear.ZEN


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "who"),
    [
        (512, 1024, BRAIN, Linear.SGL),  # a mebibyte
        (528, 1024, BRAIN, Linear.ONEDNN),
        (8, 1000, BRAIN, Linear.SGL),  # a router's
        (24, 128, BRAIN, Linear.ONEDNN),
        (128, 48, BRAIN, Linear.ONEDNN),
        (128, 128, HALF, Linear.ONEDNN),
        (128, 128, FLOAT, Linear.ONEDNN),
    ],
)
def test_what_fits_amx_tiles(rows: int, columns: int, dtype: str, who: Linear) -> None:
    assert linear(TABLE[Processor.AMX], rows, columns, dtype) is who


def test_eight_bits_stay_a_parameter_on_amx_unless_their_inputs_have_a_zero_point() -> None:
    amx = TABLE[Processor.AMX]
    assert int8(amx, 4096, 4096, symmetric=True) is Linear.SGL
    assert int8(amx, 4096, 4096, symmetric=False) is Linear.ONEDNN
    assert int8(amx, 8, 4096, symmetric=True) is Linear.ONEDNN
    assert int8(TABLE[Processor.AVX512_BF16], 4096, 4096, symmetric=True) is Linear.ONEDNN
    assert BYTE in amx.tiles


def test_blocks_are_laid_out_for_tiles_in_bfloat16_alone() -> None:
    amx = TABLE[Processor.AMX]
    assert attention(amx, 128, BRAIN, 32) == "amx"
    assert attention(amx, 128, FLOAT, 32) == "vec"
    assert attention(amx, 128, BRAIN, 16) == attention(amx, 80, BRAIN, 32) == "vec16"
    assert attention(TABLE[Processor.ARM], 128, BRAIN, 16) == "neon"
