"""Copies of KV blocks use the part of the link that streamed layers leave, and no more."""

from __future__ import annotations

from math import inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.kv_link import bytes_in, spare_bytes

pytestmark = pytest.mark.pure

SECONDS = st.floats(1e-6, 1.0)


def test_the_rest_of_a_step() -> None:
    # 10 layers of 2 ms compute; 3 are loaded in 4 ms each: 8 of 20 ms are left, at 100 B in 4 ms.
    spare = spare_bytes(layers=10, streamed=3, layer_bytes=100, load_s=0.004, compute_s=0.002)
    assert isclose(spare, 200)


@given(st.integers(1, 80), st.integers(0, 80), st.integers(1, 1 << 30), SECONDS, SECONDS)
def test_layers_and_blocks_fit_into_the_compute(
    layers: int, streamed: int, nbytes: int, load_s: float, compute_s: float
) -> None:
    spare = spare_bytes(
        layers=layers, streamed=streamed, layer_bytes=nbytes, load_s=load_s, compute_s=compute_s
    )
    if streamed == 0:
        assert spare == inf
        return
    assert spare >= 0
    taken_s = streamed * load_s + spare * load_s / nbytes
    assert taken_s <= max(layers * compute_s, streamed * load_s) * (1 + 1e-9)


@pytest.mark.parametrize(("load_s", "compute_s"), [(0.0, 0.1), (0.1, 0.0)])
def test_without_measurements_there_is_no_bound(load_s: float, compute_s: float) -> None:
    spare = spare_bytes(layers=4, streamed=2, layer_bytes=8, load_s=load_s, compute_s=compute_s)
    assert spare == inf


def test_bytes_in_a_time() -> None:
    assert isclose(bytes_in(0.5, layer_bytes=100, load_s=0.1), 500)
    assert bytes_in(0.5, layer_bytes=100, load_s=0.0) == inf
