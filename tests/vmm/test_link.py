"""Speed of the link where no layer is loaded over it, which gives T_T of layers that stay."""

from __future__ import annotations

import pytest

from mirage.engine.link import load_s
from vmm.driver import DeviceError
from vmm.host import HostDriver
from vmm.pages import PagePool

pytestmark = pytest.mark.vmm

PAGE, PAGES = 4096, 64
RATE = 1 << 26


@pytest.fixture
def driver():
    with HostDriver(PAGE, copy_bytes_per_s=RATE) as made:
        yield made


@pytest.mark.parametrize("granted", [PAGES, PAGES // 2, 1])
def test_a_layer_takes_what_the_link_lets_through(driver: HostDriver, granted: int) -> None:
    """The load time of a layer is measured with `granted` pages, perhaps fewer than a layer has,
    and scaled. All memory is given back afterwards.
    """
    pool = PagePool(driver, granted * PAGE)
    assert load_s(driver, pool, PAGES * PAGE) >= PAGES * PAGE / RATE
    assert (pool.in_use_bytes, pool.available) == (0, granted)
    pool.trim()
    assert driver.used_bytes() == 0
    driver.check_integrity()


@pytest.mark.parametrize(("granted", "nbytes"), [(0, PAGES * PAGE), (PAGES, 0)])
def test_nothing_is_known_without_a_page_or_a_layer(driver, granted: int, nbytes: int) -> None:
    assert load_s(driver, PagePool(driver, granted * PAGE), nbytes) == 0


def test_a_device_that_locks_no_memory_leaves_it_unknown(driver, monkeypatch, caplog) -> None:
    def refused(address: int, nbytes: int) -> None:
        raise DeviceError("no memory is locked here")

    monkeypatch.setattr(driver, "pin", refused)
    pool = PagePool(driver, PAGES * PAGE)
    assert load_s(driver, pool, PAGES * PAGE) == 0
    assert "no memory is locked here" in caplog.text
    assert driver.used_bytes() == 0
