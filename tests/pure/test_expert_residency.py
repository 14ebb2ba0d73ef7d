"""Books of the experts that have memory, compared with a simple model, and counts of routing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.prices import Batches, Mixture, best, cold_experts
from mirage.streaming.giving import affordable
from mirage.streaming.residency import Expert, Residency
from mirage.streaming.routing import RoutingCounts

pytestmark = pytest.mark.pure

LAYERS, COUNT = (0, 2, 5), 6
numbers = st.sets(st.integers(0, COUNT - 1), min_size=1)
events = st.lists(
    st.integers(0, COUNT - 1)
    | st.tuples(st.sampled_from(LAYERS), numbers)
    | st.tuples(st.sampled_from(LAYERS), numbers),
    min_size=10,
    max_size=60,
)


def _experts(cold) -> set[Expert]:
    return {Expert(layer, number) for layer, numbers in cold.items() for number in numbers}


@given(events)
def test_whatever_is_routed_to_is_there_and_frames_suffice(todo) -> None:
    """Random events: experts are given away, and steps route to some. `mapped` follows the books'
    orders; each expert that a step uses is in it, within the given number of frames.
    """
    books = Residency(RoutingCounts(LAYERS, COUNT))
    mapped = {Expert(layer, n) for layer in LAYERS for n in range(COUNT)}
    for event in todo:
        if isinstance(event, int):
            mapped -= set(books.framed)
            before, chosen = _experts(books.cold), books.chosen(event)
            assert _experts(books.cold) == before, "to choose changes nothing"
            books.give(chosen)
            assert books.cold == chosen and books.given == event and not books.framed
            after = _experts(chosen)
            assert before <= after or after <= before, "what is cold stays so, or turns local"
            mapped = mapped - (after - before) | (before - after)
        else:
            layer, used = event
            books.routing.seen(layer, used)
            seen = books.hits + books.loads
            cold = used & books.cold[layer]
            leave, load = books.route(layer, used)
            assert set(leave) <= mapped and not set(load) & mapped
            mapped = mapped - set(leave) | set(load)
            assert {Expert(layer, n) for n in used} <= mapped
            assert books.hits + books.loads == seen + len(cold)
        local = {Expert(i, n) for i in LAYERS for n in range(COUNT) if n not in books.cold[i]}
        assert mapped == local | set(books.framed) and not local & set(books.framed)
        assert len(books.framed) <= books.given
        assert all(len(cold) == books.given for cold in books.cold.values())


def test_what_a_step_uses_keeps_its_frame() -> None:
    books = Residency(RoutingCounts((0, 1), 4))
    books.give(books.chosen(2))
    assert books.cold[0] == {2, 3}
    assert books.route(0, {2}) == ([], [Expert(0, 2)])
    assert books.route(1, {3}) == ([], [Expert(1, 3)])
    assert books.route(0, {2, 3}) == ([Expert(1, 3)], [Expert(0, 3)]), (
        "not the one used longest ago"
    )
    assert books.route(1, {2}) == ([Expert(0, 2)], [Expert(1, 2)])
    assert (books.hits, books.loads) == (1, 4)


def test_the_coldest_go_and_stay_cold() -> None:
    books = Residency(RoutingCounts(LAYERS, COUNT))
    for _ in range(50):
        for layer in LAYERS:
            books.routing.seen(layer, {0, 1, 3})
    books.give(books.chosen(2))
    assert all(cold == {4, 5} for cold in books.cold.values())
    books.give(books.chosen(3))
    assert all(cold == {2, 4, 5} for cold in books.cold.values())
    assert books.routing.routed() == pytest.approx([0, 0, 0, 0, 3, 6, 9])


def test_what_turns_hot_is_swapped_without_a_copy_more() -> None:
    books = Residency(RoutingCounts((0,), 4))
    for _ in range(200):
        books.routing.seen(0, {0, 1})
    books.give(books.chosen(2))
    assert books.cold[0] == {2, 3}
    loads = []
    for _ in range(200):
        books.routing.seen(0, {2})
        loads += books.route(0, {2}).load
    assert loads == [Expert(0, 2)], "loaded once, then it is local"
    assert 2 not in books.cold[0] and books.swaps == 1
    assert books.route(0, {0, 1}).load == [], "what it was swapped for is still in its frame"


def test_like_shares_are_not_swapped_to_and_fro() -> None:
    books = Residency(RoutingCounts((0,), 4))
    books.give(books.chosen(2))
    for step in range(400):
        used = {step % 4}
        books.routing.seen(0, used)
        books.route(0, used)
    assert books.swaps <= 2


@given(st.lists(numbers, min_size=1, max_size=400))
def test_shares_are_shares(calls) -> None:
    routing = RoutingCounts(
        (0,), COUNT, window=1
    )  # weighs a call twice the one before: soon rescaled
    for used in calls:
        routing.seen(0, used)
    assert all(0 <= routing.share(0, n) <= 1 + 1e-9 for n in range(COUNT))
    newest = [routing.share(0, n) for n in calls[-1]]
    assert min(newest) >= 0.5 - 1e-9
    assert routing.calls == len(calls)


given_away = st.one_of(
    st.tuples(st.integers(0, 5), st.just(0)), st.tuples(st.just(0), st.integers(0, 5))
)


@given(given_away, given_away, st.integers(0, 40), st.integers(1, 9), st.integers(1, 9))
def test_the_way_is_paid_for_and_ends(now, to, spare: int, layer: int, expert: int) -> None:
    def cost(layers_remapped: int, experts: int) -> int:
        return 100 - layers_remapped * layer - experts * expert

    there = affordable(cost, now, to, spare)
    assert cost(*there) <= cost(*now) + spare
    assert 0 in there and min(there) >= 0
    if cost(*to) <= cost(*now) + spare:
        assert there == to
    assert affordable(cost, there, to, 0) == there, "in one step as far as it goes"
    assert affordable(cost, there, to, 1000) == to


def worth(kv_bytes: int = 100, most: int = 7, lengthening: float = 0.1) -> int:
    """Best number of experts to give away, among those whose loads make a step longer by at most
    the part `lengthening`.
    """
    routed = [0.0] * 4 + [2.0, 5.0, 20.0, 40.0, 80.0]
    mixture = Mixture(gain_bytes=10, routed=routed, load_s=0.001, compute_s=0.1)
    cold = [g for g in range(most + 1) if mixture.step_s(g) <= (1 + lengthening) * 0.1]
    price = best([cold_experts(mixture, 0, g, 1.0) for g in cold], Batches(kv_bytes), 1.0)
    assert price is not None
    return round(price.nbytes) // mixture.gain_bytes


def test_how_many_are_worth_it() -> None:
    assert worth() == 5, "the sixth lengthens a step by a fifth"
    assert worth(most=3) == 3
    assert worth(kv_bytes=10**6) == 3, "what hardly helps must be free"
    assert worth(lengthening=1.0) == 5, "more would cost more than it adds"
    assert worth(kv_bytes=1, lengthening=1.0) == 6
