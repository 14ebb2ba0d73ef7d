"""A device has failed by its own fault, or by several of different tenants' engines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.health.device_rule import TOGETHER_S, WINDOW_S, DeviceRecord
from vmm.faults import FAULTS, Fault, Scope

pytestmark = pytest.mark.pure
ECC, ILLEGAL = FAULTS["CUDA_ERROR_ECC_UNCORRECTABLE"], FAULTS["CUDA_ERROR_ILLEGAL_ADDRESS"]


def test_a_fault_of_the_device_is_one_at_once() -> None:
    why = DeviceRecord().met("a", ECC, {"1"}, 0)
    assert why == "CUDA_ERROR_ECC_UNCORRECTABLE, uncorrectable ECC error encountered (tenant 'a')"


@pytest.mark.parametrize("fault", [f for f in FAULTS.values() if f.scope is Scope.CONTEXT], ids=str)
def test_one_fault_of_a_process_is_none(fault: Fault) -> None:
    assert DeviceRecord().met("a", fault, {"1"}, 0) == ""


def test_several_of_different_tenants_over_different_requests_are() -> None:
    record = DeviceRecord()
    assert record.met("a", ILLEGAL, {"1"}, 0) == record.met("b", ILLEGAL, {"2"}, 60) == ""
    assert record.met("a", ILLEGAL, {"3"}, 120) == (
        "3 faults in 10 minutes over different requests of tenants 'a' and 'b', the last "
        "CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access was encountered"
    )


def test_an_engine_without_requests_has_nobody_to_blame_but_the_device() -> None:
    record = DeviceRecord()
    whys = [record.met(tenant, ILLEGAL, set(), 60.0 * n) for n, tenant in enumerate("aab")]
    assert [bool(why) for why in whys] == [False, False, True]


def test_faults_of_long_ago_are_forgotten() -> None:
    record = DeviceRecord()
    whys = [record.met("ab"[n % 2], ILLEGAL, {str(n)}, n * (WINDOW_S - 1)) for n in range(20)]
    assert not any(whys)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, TOGETHER_S / 2)), max_size=40))
def test_processes_that_end_together_end_by_one_fault(ends: list[tuple[str, float]]) -> None:
    record = DeviceRecord()
    for number, (tenant, at) in enumerate(sorted(ends, key=lambda end: end[1])):
        assert record.met(tenant, ILLEGAL, {str(number)}, at) == ""


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 300)), max_size=60))
def test_neither_one_tenant_nor_one_request_makes_a_device_fail(
    ends: list[tuple[bool, float]],
) -> None:
    """Engines end again and again: those of one tenant, whose model may have a faulty kernel, or
    those of two tenants while one bad request runs. Neither record makes the device failed.
    """
    model, request, now = DeviceRecord(), DeviceRecord(), 0.0
    for number, (of_a, gap) in enumerate(ends):
        now += gap
        assert model.met("a", ILLEGAL, {str(number)}, now) == ""
        assert request.met("a" if of_a else "b", ILLEGAL, {"bad"}, now) == ""
