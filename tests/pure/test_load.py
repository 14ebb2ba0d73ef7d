"""Capacity of a machine in requests per second, of which a load is a part."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.workload.dealing import TenantRequest
from mirage.workload.load import at_once, capacity_per_s, evenly
from mirage.workload.rates import mean_rate

pytestmark = pytest.mark.pure


def calls(times):
    return [TenantRequest(index, at, "a", 8, 2, False) for index, at in enumerate(times)]


@given(st.integers(0, 400), st.integers(1, 50))
def test_a_part_is_spread_over_the_whole(count, most):
    chosen = evenly(calls(range(count)), most)
    assert len(chosen) <= most
    gaps = {b.index - a.index for a, b in pairwise(chosen)}
    assert len(gaps) <= 1, "of even distance"
    if count:
        assert chosen[0].index == 0
        assert count - chosen[-1].index <= max(gaps, default=count), "to the end"
        assert count > most or len(chosen) == count, "all of them where they are few"


def test_mean_arrivals():
    assert mean_rate([10, 10.5, 12]) == 1.0
    assert mean_rate([3, 3]) is None
    assert mean_rate([3]) is None
    assert mean_rate([]) is None


def test_capacity_does_not_count_what_runs_out():
    """Ten requests, four at once: after the seventh end fewer than four run. Capacity is computed
    from the first seven alone.
    """
    ended = [1, 2, 3, 4, 5, 6, 7, 20, 30, 40]
    assert capacity_per_s(ended, 4) == 1.0


def test_capacity_of_fewer_requests_than_go_at_once():
    assert capacity_per_s([2.0, 4.0], 32) == 0.5


@pytest.mark.parametrize(("requests", "under_way"), [(1, 1), (3, 1), (10, 5), (64, 32), (999, 32)])
def test_of_few_requests_fewer_go_at_once(requests, under_way):
    assert at_once(requests) == under_way


def test_the_capacity_of_few_requests_is_not_that_of_one_answer():
    """Three requests one after the other take 1, 4 and 1 seconds. The capacity is 3 in 6 s, not
    that of one short answer.
    """
    assert capacity_per_s([1.0, 5.0, 6.0], at_once(3)) == 0.5


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_a_machine_of_another_speed_has_its_capacity(speed):
    ended = [index / 7 for index in range(1, 100)]
    scaled = [moment / speed for moment in ended]
    assert capacity_per_s(scaled, 8) == pytest.approx(speed * capacity_per_s(ended, 8))
