"""Distance of our kernels from vLLM's default ones: they round in another order, and no more.

Tests of identity compare with plain vLLM with our kernels. This one compares these with what a user
of vLLM has on this processor, and with what is packed for AMX.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from children import must, spawn
from tiny import LAYERS, make_model

from tests import kinds

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.one_of("rounding")]

FAMILIES = ("opt", "llama")
MOST, MEAN = 0.25, 0.03
"""Most between two log-probabilities of a token. bfloat16 has eight bits, a logit some units."""


@pytest.mark.parametrize("processor", [None, "amx"])
def test_packed_kernels_give_nearly_the_same_log_probabilities(
    processor: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if processor is not None:
        if not kinds.runs_here(processor):
            pytest.skip(f"engines cannot run as on {processor} here")
        monkeypatch.setenv(kinds.VARIABLE, processor)
    for family in FAMILIES:
        make_model(family, tmp_path)
    must(spawn("distance.py", tmp_path, out := tmp_path / "out.json", *FAMILIES))
    for family, said in json.loads(out.read_text()).items():
        far = [abs(a - b) for a, b in zip(said["packed"], said["plain"], strict=True)]
        packs = processor is not None or "avx512f" in Path("/proc/cpuinfo").read_text()
        assert said["packed_away"] >= (LAYERS if packs else 0) and not said["plain_away"]
        found = f"{family}: most {max(far):.4f}, mean {sum(far) / len(far):.5f}"
        assert len(far) > 300 and max(far) < MOST and sum(far) / len(far) < MEAN, found
        # Tokens of random weights are not alike: another model would be far away.
        assert max(said["plain"]) - min(said["plain"]) > 10 * MOST, found
