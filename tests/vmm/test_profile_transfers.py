"""Copies over the link and changes of pages as `mirage profile` measures them, with
both drivers.
"""

from __future__ import annotations

from typing import Any

import pytest

from mirage.tools.profile import transfers
from tests.vmm.conftest import standin
from vmm.driver import DeviceUnavailable

pytestmark = pytest.mark.vmm

PAGE = 2 << 20
ACTS = {"create_s", "map_s", "clear_s", "unmap_s", "release_s"}


def asked(kind: str, **changes: Any) -> dict[str, Any]:
    question = {
        "kind": kind,
        "index": 0,
        "page": PAGE,
        "copy_bytes_per_s": None,
        "sizes": [PAGE, 3 << 20],
        "span": 8 << 20,
        "counts": [1, 3],
        "rounds": 3,
    }
    return question | changes


@pytest.mark.parametrize("kind", ["host", "cuda"])
def test_every_size_and_number_is_measured_and_nothing_is_left(kind: str) -> None:
    device = standin()
    device.reset(memory_bytes=1 << 30, granularity=PAGE)
    found = transfers.measure(asked(kind))
    assert found["page_bytes"] == PAGE
    assert [copy["bytes"] for copy in found["copies"]] == [PAGE, 3 << 20]
    assert [row["pages"] for row in found["pages"]] == [1, 3]
    for row in (*found["copies"], *found["pages"]):
        times = [seconds for key, seconds in row.items() if key.endswith("_s")]
        assert all(len(taken) == 3 and min(taken) > 0 for taken in times)
    assert {key for key in found["pages"][0] if key.endswith("_s")} == ACTS
    assert not any(device.leaks().values()), device.leaks()
    device.reset()


def test_a_link_that_is_imitated_is_the_one_that_is_measured() -> None:
    found = transfers.measure(asked("host", copy_bytes_per_s=100e6, rounds=1))
    for copy in found["copies"]:
        assert copy["one_way_s"][0] >= copy["bytes"] / 100e6 * 0.99


def test_a_gpu_that_is_not_there_is_said() -> None:
    device = standin()
    device.reset(memory_bytes=1 << 30, granularity=PAGE)
    with pytest.raises(DeviceUnavailable, match="device 3"):
        transfers.measure(asked("cuda", index=3))
