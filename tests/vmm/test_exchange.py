"""Pages through a depot: what it holds, what it drops, and all that goes wrong between."""

from __future__ import annotations

import logging
import os
import resource
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from vmm import HostDriver, OutOfMemory, Page, PagePool, StillMapped, UnknownPage
from vmm.depot import Depot, raise_limit
from vmm.exchange import AT_ONCE, COMMIT, OFFER, PAGES, WANT, WORD, Exchange, close_all, hear, say

pytestmark = pytest.mark.vmm

PAGE = 4096
LINGER_S = 30.0


class Pages:
    """A driver whose pages are files in memory."""

    def __init__(self, page_bytes: int = PAGE) -> None:
        self.page_bytes, self.files = page_bytes, dict[Page, int]()
        self.mapped: set[Page] = set()
        self._next = 0

    def create(self, count: int) -> list[Page]:
        return [self._enter(os.memfd_create("page", os.MFD_CLOEXEC)) for _ in range(count)]

    def release(self, pages: Sequence[Page]) -> None:
        if self.mapped & set(pages):
            raise StillMapped("mapped")
        close_all([self.files.pop(page) for page in pages])

    def export_page(self, page: Page) -> int:
        return os.dup(self.files[page])

    def import_page(self, fd: int) -> Page:
        return self._enter(os.dup(fd))

    def inodes(self) -> set[int]:
        return {os.fstat(fd).st_ino for fd in self.files.values()}

    def _enter(self, fd: int) -> Page:
        self._next += 1
        self.files[Page(self._next)] = fd
        return Page(self._next)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def until(what: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """All descriptors are closed when the test ends."""
    before = open_files()
    yield tmp_path
    assert open_files() == before


Make = Callable[..., Depot]


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    made: list[Depot] = []

    def begin(**how: object) -> Depot:
        made.append(Depot(folder / "depot", **({"linger_s": LINGER_S, "most": 1000} | how)))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield begin
    for depot in made:
        depot.stop()


Join = Callable[..., Exchange]


@pytest.fixture
def join(folder: Path) -> Iterator[Join]:
    made: list[tuple[Exchange, Pages]] = []

    def begin(driver: Pages, who: str = "a", device: str = "gpu", **how: float) -> Exchange:
        how = {"timeout_s": 2.0, "rest_s": 0.0} | how
        made.append((Exchange(driver, folder / "depot", device, who, **how), driver))  # type: ignore[arg-type]
        return made[-1][0]

    yield begin
    for exchange, driver in made:
        exchange.close()
        driver.mapped.clear()
        driver.release(list(driver.files))


def test_pages_go_from_one_to_the_other(make: Make, join: Join) -> None:
    depot, giver, taker = make(), Pages(), Pages()
    pages = giver.create(3 * AT_ONCE + 5)
    inodes = giver.inodes()
    join(giver).deposit(pages)
    assert not giver.files, "nothing is left of them"
    assert depot.counts()["held"] == len(pages)
    other = join(taker, "b")
    assert len(other.withdraw(7)) == 7
    assert len(other.withdraw(1000)) == len(pages) - 7, "what is there"
    assert other.withdraw(1) == []
    assert taker.inodes() == inodes
    counts = depot.counts()
    assert counts["deposited"] == counts["withdrawn"] == counts["passed"] == len(pages)
    assert counts["held"] == counts["dropped"] == counts["refused"] == 0


def test_a_depot_listens_again_where_its_socket_was_removed(
    make: Make, join: Join, folder: Path
) -> None:
    depot, giver, taker = make(), Pages(), Pages()
    first = join(giver)
    first.deposit(giver.create(1))
    (folder / "depot").unlink()
    depot.listen().result(5)
    assert len(join(taker, "b").withdraw(1)) == 1
    first.deposit(giver.create(1))  # who was there stays
    assert depot.counts()["deposited"] == 2
    with pytest.raises(ValueError, match=r"no socket at .*depot: .*in use"):
        depot.listen().result(5)
    assert depot.serving
    depot.stop()
    depot.listen().result(5)
    assert not depot.serving and not (folder / "depot").exists()


def test_what_a_process_takes_back_was_not_passed(make: Make, join: Join) -> None:
    depot, driver = make(), Pages()
    exchange = join(driver)
    exchange.deposit(driver.create(2))
    assert len(exchange.withdraw(5)) == 2
    assert depot.counts()["passed"] == 0 and depot.counts()["withdrawn"] == 2


def test_a_page_goes_to_the_same_device_and_size_alone(make: Make, join: Join) -> None:
    depot, giver = make(), Pages()
    join(giver).deposit(giver.create(2))
    assert join(Pages(page_bytes=2 * PAGE), "b").withdraw(2) == []
    assert join(Pages(), "c", device="another").withdraw(2) == []
    assert len(join(Pages(), "d").withdraw(2)) == 2
    assert depot.counts()["held"] == 0


def test_others_get_a_page_only_once_its_giver_has_released_it(make: Make, join: Join) -> None:
    depot, giver, other = make(), Pages(), join(Pages(), "b")
    found: list[list[Page]] = []
    release = giver.release

    def released(pages: Sequence[Page]) -> None:
        found.append(other.withdraw(5))
        release(pages)

    giver.release = released  # type: ignore[method-assign]
    join(giver).deposit(giver.create(2))
    giver.release = release  # type: ignore[method-assign]
    assert found == [[]] and len(other.withdraw(5)) == 2
    assert depot.counts()["held"] == 0


def test_a_mapped_page_is_refused_and_nobody_gets_it(make: Make, join: Join) -> None:
    depot, giver = make(), Pages()
    pages = giver.create(3)
    giver.mapped.add(pages[1])
    exchange = join(giver)
    with pytest.raises(StillMapped):
        exchange.deposit(pages)
    assert list(giver.files) == pages
    assert join(Pages(), "b").withdraw(3) == [] and depot.counts()["deposited"] == 0
    giver.mapped.clear()
    exchange.deposit(pages)
    assert depot.counts()["held"] == 3


def test_a_full_depot_takes_a_part(make: Make, join: Join) -> None:
    depot, giver = make(most=5), Pages()
    exchange = join(giver)
    exchange.deposit(giver.create(3))
    exchange.deposit(giver.create(4))
    assert not giver.files, "what is refused is released"
    assert depot.counts()["held"] == 5 and depot.counts()["refused"] == 2
    assert len(join(Pages(), "b").withdraw(9)) == 5


def test_what_is_promised_counts(make: Make, join: Join, folder: Path) -> None:
    depot, giver = make(most=5), Pages()
    with greeted(folder) as other:
        say(other, OFFER, 4)
        assert hear(other) == (OFFER, 4, [])
        join(giver).deposit(giver.create(4))
        assert depot.counts()["held"] == 1


def test_what_nobody_takes_is_dropped(make: Make, join: Join) -> None:
    depot, giver = make(linger_s=0.2), Pages()
    join(giver).deposit(giver.create(2 * AT_ONCE + 1))
    assert depot.counts()["held"] == 2 * AT_ONCE + 1
    until(lambda: depot.counts()["dropped"] == 2 * AT_ONCE + 1)
    assert depot.counts()["held"] == 0 and join(Pages(), "b").withdraw(1) == []


def test_while_it_is_shut_all_is_free(make: Make, join: Join) -> None:
    depot, giver = make(), Pages()
    exchange, before = join(giver), open_files()
    exchange.deposit(giver.create(9))
    connected = open_files() - 9
    assert connected - before == 2, "both ends of a socket"
    depot.shut().result(5)
    assert open_files() == connected, "all of it, and at once"
    depot.shut().result(5)
    exchange.deposit(giver.create(9))
    assert not giver.files and depot.counts()["held"] == 0
    depot.open().result(5)
    exchange.deposit(giver.create(1))
    assert depot.counts()["held"] == 0, "shut by another still"
    depot.open().result(5)
    exchange.deposit(giver.create(1))
    assert depot.counts()["held"] == 1


def test_shut_between_an_offer_and_its_end(make: Make, folder: Path) -> None:
    depot = make()
    files = [os.memfd_create("page") for _ in range(3)]
    with greeted(folder) as guest:
        say(guest, OFFER, 3)
        assert hear(guest)[1] == 3
        say(guest, PAGES, 2, files[:2])
        depot.shut().result(5)
        say(guest, PAGES, 1, files[2:])
        say(guest, COMMIT, 0)
        assert hear(guest) == (COMMIT, 0, []) and depot.counts()["held"] == 0
        depot.open().result(5)
        say(guest, WANT, 3)
        assert hear(guest) == (WANT, 0, [])
    close_all(files)


def test_who_ends_in_the_middle_leaves_nothing(make: Make, folder: Path) -> None:
    depot = make()
    before = open_files()
    with greeted(folder) as guest:
        fd = os.memfd_create("page")
        say(guest, OFFER, 1)
        hear(guest)
        say(guest, PAGES, 1, [fd])
        os.close(fd)
    until(lambda: open_files() == before)
    assert depot.counts()["held"] == depot.counts()["deposited"] == 0


def test_who_ends_before_it_hears_loses_what_was_on_its_way(
    make: Make, join: Join, folder: Path
) -> None:
    depot, giver = make(), Pages()
    join(giver).deposit(giver.create(2))
    with greeted(folder) as guest:
        say(guest, WANT, 2)
    until(lambda: depot.counts()["held"] == 0)
    assert depot.counts()["withdrawn"] == 2


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1", b"mirage-depot-9 gpu 4096 a", b"\xff" * 600])
def test_a_stranger_is_sent_away(words: bytes, make: Make, join: Join, folder: Path) -> None:
    depot, giver = make(), Pages()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(folder / "depot"))
        stranger.send(words)
        stranger.settimeout(5)
        assert stranger.recv(10) == b""
    join(giver).deposit(giver.create(1))
    assert depot.counts()["held"] == 1


@pytest.mark.parametrize("message", [b"x", WORD.pack(b"?", 1), b"o" * 600])
def test_a_word_that_is_none(message: bytes, make: Make, join: Join, folder: Path) -> None:
    depot, giver = make(), Pages()
    with greeted(folder) as guest:
        guest.send(message)
        assert guest.recv(10) == b""
    join(giver).deposit(giver.create(1))
    assert depot.counts()["held"] == 1


def test_no_depot_is_one_line_and_then_rest(
    join: Join, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Pages()
    exchange = join(driver, rest_s=0.2)
    with caplog.at_level(logging.WARNING, "vmm.exchange"):
        for _ in range(3):
            assert exchange.withdraw(2) == []
            exchange.deposit(driver.create(2))
            assert not driver.files
            time.sleep(0.15)
    assert len(caplog.records) == 1
    assert "pages are released and created" in caplog.text and "No such file" in caplog.text


def test_a_depot_that_ends_is_missed_and_its_successor_found(make: Make, join: Join) -> None:
    depot, driver = make(), Pages()
    exchange = join(driver)
    exchange.deposit(driver.create(2))
    depot.stop()
    assert exchange.withdraw(2) == [], "they went with it"
    exchange.deposit(driver.create(1))
    successor = make()
    exchange.deposit(driver.create(1))
    assert successor.counts()["held"] == 1 and len(exchange.withdraw(1)) == 1


def test_a_depot_whose_thread_fails_holds_nothing_up(
    make: Make, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    depot, driver = make(), Pages()
    exchange, before = join(driver), open_files()
    exchange.deposit(driver.create(2))

    def fails() -> None:
        raise RuntimeError("a fault")

    depot._orders.give(fails).result(5)
    until(lambda: open_files() < before)
    assert "the depot ends" in caplog.text and "a fault" in caplog.text
    depot.shut().result(5)
    exchange.deposit(driver.create(2))
    assert exchange.withdraw(2) == [] and not driver.files
    assert depot.counts()["held"] == 0


def test_one_that_does_not_answer_costs_its_time_once(
    join: Join, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Pages()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.bind(str(folder / "depot"))
        mute.listen()
        exchange = join(driver, timeout_s=0.1, rest_s=60.0)
        begun = time.monotonic()
        assert exchange.withdraw(5) == []
        assert time.monotonic() - begun >= 0.1
        mute.close()  # who asked it now would be refused, and say so
        exchange.deposit(driver.create(2))
        assert exchange.withdraw(5) == [] and not driver.files
        assert "refused" not in caplog.text
    assert "timed out" in caplog.text


def test_a_page_that_cannot_be_imported_is_free(make: Make, join: Join) -> None:
    depot, giver, taker = make(), Pages(), Pages()
    join(giver).deposit(giver.create(5))
    imported = taker.import_page

    def third(fd: int) -> Page:
        if len(taker.files) == 2:
            raise OutOfMemory("no")
        return imported(fd)

    taker.import_page = third  # type: ignore[method-assign]
    assert len(join(taker, "b").withdraw(5)) == 2, "what came before it stays"
    assert depot.counts()["held"] == 0


def test_a_process_without_descriptors_left_takes_none(make: Make, join: Join) -> None:
    depot, giver, taker = make(), Pages(), Pages()
    join(giver).deposit(giver.create(5))
    other = join(taker, "b")
    assert len(other.withdraw(1)) == 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    all_others = []
    try:
        with suppress(OSError):
            while True:
                all_others.append(os.dup(0))
        assert len(other.withdraw(4)) < 4
    finally:
        close_all(all_others)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert depot.counts()["held"] == 0, "they are free"


def test_the_limit_of_files_is_raised_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_limit(300) == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        assert raise_limit(200) == 300, "never lowered"
        assert raise_limit(1 << 40) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_its_socket_is_its_owners_and_gone_at_the_end(folder: Path) -> None:
    depot = Depot(folder / "depot")
    depot.start()
    assert stat.S_IMODE((folder / "depot").stat().st_mode) == 0o700
    depot.stop()
    depot.stop()
    assert not (folder / "depot").exists()
    depot.shut().result(1)
    depot.open().result(1)


def test_an_order_that_nobody_waits_for_any_more_is_carried_out(make: Make, join: Join) -> None:
    depot, giver = make(), Pages()
    for _ in range(20):
        depot.shut().cancel()
    for _ in range(19):
        depot.open()
    depot.open().result(5)
    join(giver).deposit(giver.create(1))
    assert depot.counts()["held"] == 1


# -- the pool over it -------------------------------------------------------------------


class Shelf:
    """A supply that notes what goes past; `stock` pages of a driver are on it."""

    def __init__(self, driver: HostDriver, stock: int) -> None:
        self.driver, self.stock, self.asked = driver, driver.create(stock), list[int]()

    def withdraw(self, count: int) -> list[Page]:
        self.asked.append(count)
        given, self.stock = self.stock[:count], self.stock[count:]
        return given

    def deposit(self, pages: Sequence[Page]) -> None:
        for page in pages:
            if page not in self.driver._table.pages:
                raise UnknownPage("no such page")
        self.stock += pages


@pytest.fixture
def host() -> Iterator[HostDriver]:
    driver = HostDriver(page_bytes=65536, capacity_bytes=16 * 65536)
    yield driver
    driver.close()


def test_the_pool_asks_first_and_creates_the_rest(host: HostDriver) -> None:
    shelf = Shelf(host, 3)
    stock = set(shelf.stock)
    pool = PagePool(host, 10 * host.page_bytes, shelf)
    taken = pool.take(2, "kv")
    assert set(taken) < stock and shelf.asked == [2]
    taken += pool.take(3, "kv")
    assert stock < set(taken) and shelf.asked == [2, 3]
    assert host.used_bytes() == 5 * host.page_bytes
    pool.give(taken[:2])
    pool.take(2, "layer")
    assert shelf.asked == [2, 3], "spare pages come before all"
    pool.check_integrity()


def test_what_it_sheds_goes_to_the_supply(host: HostDriver) -> None:
    shelf = Shelf(host, 0)
    pool = PagePool(host, 4 * host.page_bytes, shelf)
    taken = pool.take(4, "kv")
    pool.give(taken[:3])
    pool.set_grant(2 * host.page_bytes)
    assert len(shelf.stock) == 2
    pool.trim()
    assert sorted(shelf.stock) == sorted(taken[:3])
    pool.check_integrity()
    assert pool.held_bytes == host.page_bytes


def test_what_was_had_before_the_device_ran_out_is_spare(host: HostDriver) -> None:
    shelf = Shelf(host, 3)
    host.create(12)
    pool = PagePool(host, 100 * host.page_bytes, shelf)
    with pytest.raises(OutOfMemory):
        pool.take(5, "kv")
    assert pool.held_bytes == 3 * host.page_bytes and not pool.in_use_bytes
    pool.check_integrity()
    assert len(pool.take(4, "kv")) == 4 and shelf.asked == [5, 1]
    pool.check_integrity()


# -- helpers ----------------------------------------------------------------------------


class greeted:
    """A guest that speaks for itself."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(5)
        self._socket.connect(str(folder / "depot"))
        self._socket.send(f"mirage-depot-1 gpu {PAGE} guest".encode())

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.close()
