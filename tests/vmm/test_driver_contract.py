"""The contract of all drivers, whatever memory they drive."""

from __future__ import annotations

from itertools import pairwise

import pytest

from vmm import (
    AlreadyMapped,
    Misaligned,
    NotMapped,
    NotReserved,
    OutOfMemory,
    Page,
    StillMapped,
    UnknownPage,
)
from vmm.driver import Driver, DriverClosed

pytestmark = pytest.mark.vmm


def mapped(driver: Driver, count: int) -> tuple[int, list[Page]]:
    """A reservation of `count` pages with new pages behind all of it, all zero."""
    address, pages = driver.reserve(count * driver.page_bytes), driver.create(count)
    driver.map(address, pages)
    driver.fill(address, 0, count * driver.page_bytes)
    return address, pages


def first_byte(driver: Driver, address: int) -> int:
    return int(driver.tensor(address, 1)[0])


class TestCreateMost:
    def test_it_is_as_many_as_there_are(self, driver: Driver) -> None:
        first = driver.create_most(200)
        rest = driver.create_most(200)
        assert (len(first), len(rest)) == (200, 56), "the device has 256"
        assert driver.create_most(1) == [] and not set(first) & set(rest)
        driver.release([*rest, *first])
        assert driver.create_most(0) == []

    def test_a_count_is_not_negative(self, driver: Driver) -> None:
        with pytest.raises(Misaligned, match="-1"):
            driver.create_most(-1)


class TestReserve:
    def test_addresses_are_page_aligned_and_apart(self, driver: Driver) -> None:
        page = driver.page_bytes
        spans = sorted((driver.reserve(n * page), n * page) for n in (1, 7, 3, 1, 64))
        assert all(address % page == 0 for address, _ in spans)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))

    def test_uses_no_memory(self, driver: Driver) -> None:
        driver.reserve(driver.page_bytes << 20)
        assert driver.used_bytes() == 0

    @pytest.mark.parametrize("off", [-1, 1])
    def test_misaligned_size(self, driver: Driver, off: int) -> None:
        with pytest.raises(Misaligned, match=str(driver.page_bytes + off)):
            driver.reserve(driver.page_bytes + off)

    @pytest.mark.parametrize("pages", [0, -1])
    def test_size_not_positive(self, driver: Driver, pages: int) -> None:
        with pytest.raises(Misaligned, match="positive"):
            driver.reserve(pages * driver.page_bytes)

    def test_more_addresses_than_there_are(self, driver: Driver) -> None:
        with pytest.raises(OutOfMemory, match=str(1 << 60)):
            driver.reserve(1 << 60)

    def test_unreserve_unknown(self, driver: Driver) -> None:
        address = driver.reserve(2 * driver.page_bytes)
        for wrong in (0, address + driver.page_bytes):
            with pytest.raises(NotReserved, match=f"{wrong:#x}"):
                driver.unreserve(wrong)
        driver.unreserve(address)
        with pytest.raises(NotReserved):
            driver.unreserve(address)

    def test_unreserve_while_mapped(self, driver: Driver) -> None:
        address, _ = mapped(driver, 2)
        driver.unmap(address, driver.page_bytes)
        with pytest.raises(StillMapped, match="1 of 2"):
            driver.unreserve(address)
        driver.unmap(address + driver.page_bytes, driver.page_bytes)
        driver.unreserve(address)


class TestPages:
    def test_create_and_release_move_the_device(self, driver: Driver) -> None:
        pages = driver.create(5)
        assert driver.used_bytes() == 5 * driver.page_bytes
        driver.release(pages[1:3])
        assert driver.used_bytes() == 3 * driver.page_bytes
        driver.release([pages[4], pages[0], pages[3]])
        assert driver.used_bytes() == 0

    def test_none_is_nothing(self, driver: Driver) -> None:
        assert driver.create(0) == []
        driver.release([])

    def test_out_of_memory_creates_nothing(self, driver: Driver) -> None:
        driver.create(250)
        with pytest.raises(OutOfMemory, match=str(7 * driver.page_bytes)):
            driver.create(7)
        assert driver.used_bytes() == 250 * driver.page_bytes
        driver.create(6)

    def test_negative_count(self, driver: Driver) -> None:
        with pytest.raises(Misaligned, match="-1"):
            driver.create(-1)

    def test_release_while_mapped_releases_nothing(self, driver: Driver) -> None:
        address, pages = mapped(driver, 1)
        other = driver.create(1)
        with pytest.raises(StillMapped, match=f"page {pages[0]} "):
            driver.release(other + pages)
        assert driver.used_bytes() == 2 * driver.page_bytes
        driver.unmap(address, driver.page_bytes)
        driver.release(other + pages)

    def test_release_unknown_releases_nothing(self, driver: Driver) -> None:
        gone, kept = driver.create(2)
        driver.release([gone])
        for wrong in ([kept, gone], [kept, kept], [kept, Page(12345)]):
            with pytest.raises(UnknownPage):
                driver.release(wrong)
        assert driver.used_bytes() == driver.page_bytes


class TestMap:
    def test_pages_keep_their_bytes_wherever_they_are(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, pages = mapped(driver, 3)
        for i in range(3):
            driver.fill(address + i * page, i + 1, page)
        driver.unmap(address, 3 * page)
        driver.map(address, [pages[2], pages[0], pages[1]])
        assert [first_byte(driver, address + i * page) for i in range(3)] == [3, 1, 2]

    def test_aliases_show_the_same_bytes(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, pages = mapped(driver, 2)
        alias = driver.reserve(3 * page)
        driver.map(alias, [pages[1], pages[0], pages[1]])
        driver.fill(address + page, 7, page)
        assert [first_byte(driver, alias + i * page) for i in range(3)] == [7, 0, 7]
        driver.fill(alias + 2 * page, 9, 1)
        assert first_byte(driver, address + page) == 9

    def test_an_aliased_page_is_free_after_its_last_mapping(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, pages = mapped(driver, 1)
        alias = driver.reserve(page)
        driver.map(alias, pages)
        for here, times in ((alias, 2), (address, 1)):
            with pytest.raises(StillMapped, match=f"{times} times"):
                driver.release(pages)
            driver.unmap(here, page)
        driver.release(pages)

    def test_misaligned(self, driver: Driver) -> None:
        address = driver.reserve(4 * driver.page_bytes)
        pages = driver.create(1)
        with pytest.raises(Misaligned, match=f"{address + 512:#x}"):
            driver.map(address + 512, pages)
        with pytest.raises(Misaligned, match="positive"):
            driver.map(address, [])

    def test_not_reserved(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, pages = driver.reserve(2 * page), driver.create(3)
        for wrong, what in ((address, pages), (address + page, pages[:2]), (0, pages[:1])):
            with pytest.raises(NotReserved, match=f"{wrong:#x}"):
                driver.map(wrong, what)

    def test_already_mapped_maps_nothing(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, pages = driver.reserve(3 * page), driver.create(3)
        driver.map(address + page, pages[1:2])
        with pytest.raises(AlreadyMapped, match=f"{address + page:#x}"):
            driver.map(address, pages)
        driver.release([pages[0], pages[2]])
        with pytest.raises(NotMapped):
            driver.unmap(address, page)

    def test_unknown_page_maps_nothing(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, (kept, gone) = driver.reserve(2 * page), driver.create(2)
        driver.release([gone])
        with pytest.raises(UnknownPage, match=f"page {gone} "):
            driver.map(address, [kept, gone])
        driver.release([kept])

    def test_unmap_what_is_not_mapped_unmaps_nothing(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, pages = driver.reserve(3 * page), driver.create(2)
        driver.map(address, pages)
        with pytest.raises(NotMapped, match=f"{address + 2 * page:#x}"):
            driver.unmap(address, 3 * page)
        with pytest.raises(NotReserved):
            driver.unmap(address, 4 * page)
        with pytest.raises(Misaligned):
            driver.unmap(address, page // 2)
        driver.fill(address, 1, 2 * page)
        driver.unmap(address, 2 * page)
        with pytest.raises(NotMapped):
            driver.unmap(address, page)


class TestAccess:
    def test_copy_within_the_device(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, _ = mapped(driver, 2)
        driver.fill(address, 5, page)
        driver.copy(address + page, address, page)
        assert driver.tensor(address, 2 * page).eq(5).all()

    def test_only_the_named_bytes_change(self, driver: Driver) -> None:
        address, _ = mapped(driver, 1)
        driver.fill(address + 10, 3, 5)
        driver.copy(address + 12, address, 1)
        assert driver.tensor(address, 20).tolist() == [0] * 10 + [3, 3, 0, 3, 3] + [0] * 5

    def test_not_mapped(self, driver: Driver) -> None:
        page = driver.page_bytes
        address = driver.reserve(3 * page)
        driver.map(address, driver.create(2))
        driver.fill(address, 0, 2 * page)
        end = address + 2 * page
        for start, nbytes in ((end, 1), (end - 1, 2), (address, 3 * page), (end + page - 1, 2)):
            with pytest.raises(NotMapped, match=f"{start:#x}"):
                driver.fill(start, 1, nbytes)
            with pytest.raises(NotMapped, match=f"{start:#x}"):
                driver.copy(address, start, nbytes)
            with pytest.raises(NotMapped, match=f"{start:#x}"):
                driver.copy(start, address, nbytes)
        assert not driver.tensor(address, 2 * page).any()

    def test_sizes_are_positive(self, driver: Driver) -> None:
        address, _ = mapped(driver, 1)
        for nbytes in (0, -1):
            with pytest.raises(Misaligned):
                driver.fill(address, 1, nbytes)
            with pytest.raises(Misaligned):
                driver.copy(address, address, nbytes)

    def test_tensor_is_the_memory(self, driver: Driver) -> None:
        address, _ = mapped(driver, 1)
        view = driver.tensor(address + 4, 4)
        driver.fill(address, 2, driver.page_bytes)
        assert view.tolist() == [2, 2, 2, 2]
        assert view.data_ptr() == address + 4

    def test_tensor_outside_a_reservation(self, driver: Driver) -> None:
        address = driver.reserve(driver.page_bytes)
        with pytest.raises(NotReserved):
            driver.tensor(address, driver.page_bytes + 1)


class TestStreams:
    def test_work_runs_in_order(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, _ = mapped(driver, 2)
        stream = driver.stream()
        for byte in range(1, 101):
            stream.fill(address, byte, page)
        stream.copy(address + page, address, page)
        stream.fill(address, 200, page)
        stream.synchronize()
        assert first_byte(driver, address) == 200
        assert driver.tensor(address + page, page).eq(100).all()

    def test_events_order_two_streams(self, driver: Driver) -> None:
        page = driver.page_bytes
        address, _ = mapped(driver, 3)
        writer, reader = driver.stream(), driver.stream()
        written, read = driver.event(), driver.event()
        for byte in range(1, 101):
            writer.wait_for(read)
            writer.fill(address, byte, page)
            writer.record(written)
            reader.wait_for(written)
            reader.copy(address + page * (1 + byte % 2), address, page)
            reader.record(read)
        read.wait()
        assert [first_byte(driver, address + i * page) for i in range(3)] == [100, 100, 99]

    def test_fresh_events_are_reached(self, driver: Driver) -> None:
        event = driver.event()
        assert event.reached()
        event.wait()

    def test_closing_completes_the_work(self, driver: Driver) -> None:
        address, _ = mapped(driver, 1)
        stream, event = driver.stream(), driver.event()
        stream.fill(address, 8, driver.page_bytes)
        stream.record(event)
        stream.close()
        stream.close()
        assert event.reached()
        assert first_byte(driver, address) == 8
        with pytest.raises(DriverClosed):
            stream.fill(address, 9, 1)


class TestClose:
    def test_everything_is_refused_afterwards(self, driver: Driver) -> None:
        made = type(driver)()
        page = made.page_bytes
        (address, pages), stream = mapped(made, 1), made.stream()
        made.close()
        made.close()
        calls = [
            lambda: made.reserve(page),
            lambda: made.unreserve(address),
            lambda: made.create(1),
            lambda: made.release(pages),
            lambda: made.map(address, pages),
            lambda: made.unmap(address, page),
            lambda: made.fill(address, 0, 1),
            lambda: made.copy(address, address, 1),
            lambda: made.tensor(address, 1),
            made.stream,
            made.event,
            made.used_bytes,
            made.check_integrity,
            stream.synchronize,
        ]
        for call in calls:
            with pytest.raises(DriverClosed):
                call()
