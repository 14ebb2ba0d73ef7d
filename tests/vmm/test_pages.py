"""The page pool: roles, spare pages, and the grant."""

from __future__ import annotations

import pytest

from vmm import Driver, GrantExceeded, OutOfMemory, Page, PagePool, StillMapped, UnknownPage
from vmm.driver import VmmError

pytestmark = pytest.mark.vmm


@pytest.fixture
def pool(driver: Driver):
    pool = PagePool(driver, 10 * driver.page_bytes)
    yield pool
    pool.check_integrity()


def pages(pool: PagePool) -> tuple[int, int, int]:
    """Numbers of pages that the pool has in use, holds, and has available."""
    size = pool.driver.page_bytes
    return pool.in_use_bytes // size, pool.held_bytes // size, pool.available


def test_nothing_is_held_before_it_is_taken(pool: PagePool, driver: Driver) -> None:
    assert pages(pool) == (0, 0, 10)
    assert driver.used_bytes() == 0


def test_given_pages_are_kept_and_taken_first(pool: PagePool, driver: Driver) -> None:
    layer = pool.take(6, "layer")
    pool.give(layer[:4])
    assert pages(pool) == (2, 6, 8)
    kv = pool.take(5, "kv")
    assert set(layer[:4]) < set(kv)
    assert pages(pool) == (7, 7, 3)
    assert driver.used_bytes() == 7 * driver.page_bytes
    assert {pool.role(page) for page in layer[4:]} == {"layer"}
    assert {pool.role(page) for page in kv} == {"kv"}


def test_take_prefers_consecutive_pages(pool: PagePool) -> None:
    layer = pool.take(10, "layer")
    spare = [layer[0], layer[2], layer[5], layer[6], layer[7], layer[9]]
    pool.give(spare)
    assert pool.take(2, "kv") == layer[5:7]
    assert pool.take(4, "kv") == [layer[0], layer[2], layer[7], layer[9]]


def test_the_grant_bounds_what_is_in_use(pool: PagePool) -> None:
    pool.take(8, "layer")
    with pytest.raises(GrantExceeded, match=r"3 pages wanted for 'kv': 8 in use, 10 granted"):
        pool.take(3, "kv")
    assert pages(pool) == (8, 8, 2)
    assert len(pool.take(2, "kv")) == 2


def test_a_part_of_a_page_is_no_page(pool: PagePool, driver: Driver) -> None:
    pool.set_grant(3 * driver.page_bytes - 1)
    assert pool.available == 2


def test_out_of_memory_leaves_the_spare_pages(driver: Driver) -> None:
    pool = PagePool(driver, 1000 * driver.page_bytes)
    pool.give(pool.take(4, "kv"))
    with pytest.raises(OutOfMemory):
        pool.take(257, "kv")
    assert pages(pool) == (0, 4, 1000)
    pool.trim()


def test_a_lower_grant_sheds_spare_pages_at_once(pool: PagePool, driver: Driver) -> None:
    layer = pool.take(8, "layer")
    pool.give(layer[4:])
    pool.set_grant(6 * driver.page_bytes)
    assert pages(pool) == (4, 6, 2)
    assert driver.used_bytes() == 6 * driver.page_bytes


def test_a_grant_under_what_is_in_use(pool: PagePool, driver: Driver) -> None:
    layer = pool.take(8, "layer")
    pool.set_grant(5 * driver.page_bytes)
    assert pages(pool) == (8, 8, 0)
    pool.check_integrity()
    with pytest.raises(GrantExceeded):
        pool.take(1, "kv")
    pool.give(layer[:2])
    assert pages(pool) == (6, 6, 0)  # given pages beyond the grant leave at once
    assert driver.used_bytes() == 6 * driver.page_bytes
    pool.give(layer[2:5])
    assert pages(pool) == (3, 5, 2)
    assert len(pool.take(2, "kv")) == 2


def test_trim_releases_what_is_spare(pool: PagePool, driver: Driver) -> None:
    pool.give(pool.take(5, "kv"))
    pool.take(2, "kv")
    pool.trim()
    assert pages(pool) == (2, 2, 8)
    assert driver.used_bytes() == 2 * driver.page_bytes


def test_pages_that_are_not_in_use(pool: PagePool) -> None:
    taken = pool.take(2, "kv")
    pool.give(taken[:1])
    for wrong in ([taken[1], taken[0]], [taken[1], taken[1]], [taken[1], Page(999)]):
        with pytest.raises(UnknownPage):
            pool.give(wrong)
    assert [pool.role(page) for page in taken] == [None, "kv"]


def test_shedding_a_mapped_page_is_refused_and_changes_nothing(pool, driver: Driver) -> None:
    address, taken = driver.reserve(2 * driver.page_bytes), pool.take(2, "kv")
    driver.map(address, taken)
    pool.set_grant(0)
    with pytest.raises(StillMapped):
        pool.give(taken)
    assert pages(pool) == (2, 2, 0)
    pool.set_grant(10 * driver.page_bytes)
    pool.give(taken)  # the caller's duty to unmap first cannot be checked here, but ...
    with pytest.raises(StillMapped):
        pool.set_grant(0)  # ... the memory cannot leave
    assert pool.grant_bytes == 10 * driver.page_bytes
    with pytest.raises(StillMapped):
        pool.trim()
    assert pages(pool) == (0, 2, 10)


def test_negative_numbers(pool: PagePool, driver: Driver) -> None:
    with pytest.raises(VmmError, match="-1"):
        pool.take(-1, "kv")
    with pytest.raises(VmmError, match="-1"):
        pool.set_grant(-1)
    with pytest.raises(VmmError, match="-5"):
        PagePool(driver, -5)


@pytest.mark.parametrize("harm", ["two roles", "over grant", "spare beyond", "lost"])
def test_integrity_notices(driver: Driver, harm: str) -> None:
    pool = PagePool(driver, 4 * driver.page_bytes)
    taken = pool.take(3, "kv")
    pool.give(taken[:1])
    if harm == "two roles":
        pool._spare.add(taken[1])
    elif harm == "over grant":
        pool._roles.update({Page(900 + i): "kv" for i in range(3)})
    elif harm == "spare beyond":
        pool._spare.update(driver.create(2))
    else:
        driver.release(taken[1:])
    with pytest.raises(VmmError):
        pool.check_integrity()
