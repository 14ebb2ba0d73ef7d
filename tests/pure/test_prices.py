"""Price of a byte of KV memory by each way to get it, and the choice between ways."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.hiding import largest_hidden
from mirage.control.prices import (
    Batches,
    KvSource,
    Layers,
    Mixture,
    Price,
    active_layers,
    best,
    cheapest,
    cold_experts,
    drop,
    idle_layers,
    ordered,
    spill,
    unused,
    worth_giving,
)

pytestmark = pytest.mark.pure

MODEL = Layers(n=10, layer_bytes=1000, load_s=0.1, compute_s=0.05)
"""The link carries 10,000 bytes a second; a step computes for half a second."""
MIXTURE = Mixture(gain_bytes=100, routed=[0.0, 0.0, 0.02, 0.5, 2.0], load_s=0.5, compute_s=0.5)
MODELS = st.builds(
    Layers,
    n=st.integers(4, 40),
    layer_bytes=st.integers(1, 1 << 30),
    load_s=st.floats(1e-5, 1.0),
    compute_s=st.floats(1e-5, 1.0),
)


def layers_of(model: Layers, span_s: float) -> Callable[[int, int], Price]:
    return partial(active_layers, model, span_s=span_s)


def kv(nbytes: float, bytes_s: float = 10_000) -> Price:
    return spill(nbytes, down_bytes_s=bytes_s, up_bytes_s=bytes_s)


def test_what_hides_costs_nothing() -> None:
    hidden, _ = largest_hidden(MODEL.n, MODEL.load_s, MODEL.compute_s)
    assert hidden > 0
    # `HIDDEN`: a step may be 3 % longer.
    assert active_layers(MODEL, 0, hidden, 100).seconds < 3
    assert active_layers(MODEL, hidden, hidden, 100).seconds == 0


def test_a_link_that_is_full_makes_the_step() -> None:
    # 9 streamed layers over one slot, or 10 over two: 1 s of loads where 0.5 s are computed.
    lost = active_layers(MODEL, 0, 8, 60)
    assert isclose(lost.seconds, 60 * (1 - 0.5 / MODEL.step_s(8)))
    assert lost.nbytes == 8000


def test_each_way_in_numbers() -> None:
    assert idle_layers(MODEL, 3) == Price(KvSource.IDLE_LAYERS, pytest.approx(0.3), 3000)
    assert kv(5000).seconds == pytest.approx(1.0)
    assert drop(5000, token_bytes=10, prefill_tokens_s=100).seconds == pytest.approx(5.0)
    # A step of 0.5 s is 0.01 s longer, so of 51 seconds one is lost.
    assert cold_experts(MIXTURE, 0, 2, 51.0) == Price(KvSource.EXPERTS, pytest.approx(1.0), 200)
    free = unused(5000, cached_bytes=2000, again=0.5, compute_bytes_s=1000)
    assert free.seconds == pytest.approx(1.0)
    assert unused(5000, cached_bytes=0, again=1, compute_bytes_s=0).seconds == 0


def test_a_long_turn_spills_and_a_short_one_streams() -> None:
    hidden, _ = largest_hidden(MODEL.n, MODEL.load_s, MODEL.compute_s)
    assert worth_giving(layers_of(MODEL, 1000.0), hidden, 8, [kv(1)]) == hidden
    assert worth_giving(layers_of(MODEL, 1e-3), hidden, 8, [kv(1)]) == 8


def test_without_another_way_all_stream() -> None:
    assert worth_giving(layers_of(MODEL, 1e9), 1, 8, []) == 8
    assert worth_giving(layers_of(MODEL, 1e9), 1, 8, [kv(1, bytes_s=0)]) == 8


def test_spilling_beats_computing_where_the_link_is_quicker() -> None:
    computed = drop(1000, token_bytes=10, prefill_tokens_s=400)  # 4,000 bytes a second
    assert cheapest([computed, kv(1000)]) == kv(1000)
    assert cheapest([computed, kv(1000, bytes_s=4000)]) == computed


def test_idle_layers_are_cheaper_than_kv_that_moves_both_ways() -> None:
    assert idle_layers(MODEL, 1).per_byte < kv(1000).per_byte
    equal = Price(KvSource.SPILL, 0.0, 1), Price(KvSource.UNUSED, 0.0, 9)
    assert cheapest(equal) == equal[1]


def test_what_brings_nothing_is_no_way() -> None:
    assert idle_layers(MODEL, 0).per_byte == inf
    assert cheapest([idle_layers(MODEL, 0), kv(10, bytes_s=0)]) is None


def test_experts_that_nobody_needs_cost_nothing() -> None:
    assert cold_experts(MIXTURE, 0, 1, 9.0) == Price(KvSource.EXPERTS, 0.0, 100)
    assert cheapest([cold_experts(MIXTURE, 0, 1, 9.0), kv(1000)]).way is KvSource.EXPERTS
    assert cheapest([cold_experts(MIXTURE, 0, 4, 9.0), kv(1000)]).way is KvSource.SPILL


@pytest.mark.parametrize(
    ("layers", "experts", "kv_bytes", "found"),
    [
        # Of equals layers, which no routing can make dearer.
        (
            Price(KvSource.LAYERS, 0.0, 300),
            Price(KvSource.EXPERTS, 0.0, 300),
            1000,
            KvSource.LAYERS,
        ),
        (
            Price(KvSource.LAYERS, 0.0, 300),
            Price(KvSource.EXPERTS, 0.1, 300),
            1000,
            KvSource.LAYERS,
        ),
        # 1,400 bytes instead of 1,300 for 5 % of the time are worth it, and for 10 % are not.
        (
            Price(KvSource.LAYERS, 0.0, 300),
            Price(KvSource.EXPERTS, 0.05, 400),
            1000,
            KvSource.EXPERTS,
        ),
        (
            Price(KvSource.LAYERS, 0.0, 300),
            Price(KvSource.EXPERTS, 0.10, 400),
            1000,
            KvSource.LAYERS,
        ),
        # A large cache gains little by either.
        (
            Price(KvSource.LAYERS, 0.0, 300),
            Price(KvSource.EXPERTS, 0.05, 400),
            9000,
            KvSource.LAYERS,
        ),
        (
            Price(KvSource.LAYERS, 0.0, 0),
            Price(KvSource.EXPERTS, 0.05, 400),
            1000,
            KvSource.EXPERTS,
        ),
    ],
)
def test_of_layers_and_experts_that_with_which_more_is_served(
    layers: Price, experts: Price, kv_bytes: int, found: KvSource
) -> None:
    chosen = best([experts, layers], Batches(kv_bytes), 1.0)
    assert chosen is not None and chosen.way is found


def test_of_nothing_nothing_is_best() -> None:
    assert best([], Batches(1000), 1.0) is None
    assert best([Price(KvSource.LAYERS, 0.0, 0)], Batches(1000), 1.0) is None


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1 << 40)), min_size=1, max_size=8),
    st.integers(1, 1 << 40),
    st.floats(0, 1),
    st.floats(1e-3, 1e4),
)
def test_the_best_way_serves_most(
    drawn: list[tuple[float, int]], kv_bytes: int, staying: float, span_s: float
) -> None:
    """Choice of `best` among drawn prices: no other price gives more tokens per second, where
    memory makes batches larger and a price takes time.
    """
    ways = [Price(KvSource.EXPERTS, lost * span_s, nbytes) for lost, nbytes in drawn]
    chosen = best(ways, Batches(kv_bytes, staying), span_s)
    if chosen is None:
        assert not any(nbytes for _, nbytes in drawn)
        return

    full = kv_bytes + max(p.nbytes for p in ways)

    def rate(price: Price) -> float:
        batch = (kv_bytes + price.nbytes) / full
        return batch / (staying + (1 - staying) * batch) * (1 - price.seconds / span_s)

    assert rate(chosen) >= max(map(rate, ways)) - 1e-9


@given(st.floats(1e-3, 1e3), st.floats(1.0, 1e6))
def test_experts_are_given_as_long_as_spilling_costs_more(span_s: float, bytes_s: float) -> None:
    kept = worth_giving(lambda a, b: cold_experts(MIXTURE, a, b, span_s), 1, 4, [kv(1, bytes_s)])
    dear = [
        cold_experts(MIXTURE, 1, g, span_s).per_byte > kv(1, bytes_s).per_byte for g in (2, 3, 4)
    ]
    assert kept == 1 + [*dear, True].index(True)


@given(MODELS, st.floats(1e-3, 1e4))
def test_more_layers_never_cost_less(model: Layers, span_s: float) -> None:
    seconds = [active_layers(model, 0, remapped, span_s).seconds for remapped in range(model.n - 1)]
    assert all(0 <= s <= span_s for s in seconds)
    assert all(after >= before - 1e-9 * span_s for before, after in pairwise(seconds))


@given(MODELS, st.floats(1e-3, 1e4), st.floats(1e-3, 1e9))
def test_what_is_streamed_is_never_dearer_than_what_was_left(
    model: Layers, span_s: float, bytes_s: float
) -> None:
    hidden, _ = largest_hidden(model.n, model.load_s, model.compute_s)
    most = model.n - 2
    kept = worth_giving(layers_of(model, span_s), hidden, most, [kv(1, bytes_s)])
    assert min(hidden, most) <= kept <= max(hidden, most)
    for remapped in range(hidden + 1, kept + 1):
        assert active_layers(model, hidden, remapped, span_s).per_byte <= kv(1, bytes_s).per_byte


@given(st.lists(st.tuples(st.sampled_from(KvSource), st.floats(0, 1e9), st.integers(0, 1 << 40))))
def test_order_is_by_the_byte(drawn: list[tuple[KvSource, float, int]]) -> None:
    prices = [Price(*one) for one in drawn]
    found = ordered(prices)
    assert sorted(found) == sorted(p for p in prices if p.nbytes)
    assert all(a.per_byte <= b.per_byte for a, b in pairwise(found))
