"""Bit-identity on lesser processors than this one, and with packing for AMX; `make
long` has more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage.processors import TABLE
from tests import kinds
from tests.zoo import FAMILIES, elsewhere, make_all
from tests.zoo.checking import check, disagreements
from tests.zoo.judging import differences, variety

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SAMPLE = {"avx2": ("llama",), "amx": ("deepseek-v2", "llama-w8a8")}


@pytest.mark.drawn("processor")
@pytest.mark.parametrize("processor", SAMPLE)
def test_outputs_are_plain_vllms_and_check_is_right(processor: str, tmp_path: Path) -> None:
    if not kinds.runs_here(processor):
        pytest.skip(f"engines cannot run as on {processor} here")
    if processor == kinds.here():
        pytest.skip(f"this processor is of class {processor}: the other tests are of it")
    names = SAMPLE[processor]
    models = make_all([FAMILIES[name] for name in names], tmp_path)
    runs = elsewhere.in_modes(processor, names, models)
    said = dict(check([FAMILIES[name] for name in names], models, elsewhere.probe(processor)))
    for name in names:
        plain, ours = runs["plain"][name], runs["mirage"][name]
        assert differences(plain, ours) == []
        assert variety(plain) > 50 and ours["layers"] > 0
        assert plain["extension"] == TABLE[kinds.PROCESSORS[processor]].extension
        assert plain["capability"] == ("AVX2" if processor == "avx2" else "AVX512")
        assert disagreements(said[name], ours["shape"]) == []
