"""Ten thousand random sequences of driver calls, some of which the device refuses.

Each call succeeds or raises one of our errors. After each, page table and device agree, once failed
undoings have been repeated; nothing is left at the end.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from cuda.bindings import driver as cu

from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from vmm import Page, VmmError, host_buffer
from vmm.cuda import CudaDriver

pytestmark = pytest.mark.vmm
PAGE = 65536
MEMORY = 12 * PAGE
SEQUENCES = [1_000, pytest.param(10_000, marks=pytest.mark.rare)]
CALLS = 12
INJECTED = (1, 2, 101, 201, 304, 400, 719, 801, 999)
"""Codes that the real driver returns for such calls; 719 is a lost device."""
ORDERS = 4
"""No order to fail lies further ahead than so many calls of the driver."""


class Sequence:
    """A driver, and random calls of it, most of which are valid."""

    def __init__(self, standin: StandIn, rng: random.Random) -> None:
        self.standin, self.rng = standin, rng
        standin.reset(memory_bytes=MEMORY, granularity=PAGE)
        standin.flags(strict_host=False)
        self.gpu = CudaDriver(shareable=True, tensors_on="cpu")
        self.ranges: dict[int, int] = {}
        self.pages: list[Page] = []
        self.stream = self.gpu.stream()
        self.reserve()
        self.create()
        if self.pages:
            self.gpu.map(next(iter(self.ranges)), self.pages[:1])

    def reserve(self) -> None:
        count = self.rng.randint(1, 4)
        self.ranges[self.gpu.reserve(count * PAGE)] = count

    def unreserve(self) -> None:
        address = self.rng.choice([*self.ranges, 0x10000])
        self.gpu.unreserve(address)
        del self.ranges[address]

    def create(self) -> None:
        self.pages += self.gpu.create(self.rng.randint(0, 6))

    def release(self) -> None:
        picked = self.some()
        self.gpu.release(picked)
        self.pages = [page for page in self.pages if page not in picked]

    def map(self) -> None:
        pages = self.some()
        places = [p for p in self.places() if p not in self.mapped()] if self.sensible() else None
        self.gpu.map(self.rng.choice(places or self.places()), pages or self.some())

    def unmap(self) -> None:
        self.gpu.unmap(self.place(), PAGE * self.rng.choice([1, 1, 1, 2]))

    def fill(self) -> None:
        self.gpu.fill(self.place(), self.rng.randrange(256), PAGE)

    def enqueue(self) -> None:
        address, event = self.place(), self.gpu.event()
        self.stream.fill(address, 1, PAGE)
        self.stream.copy(address, address + PAGE // 2, PAGE // 2)
        self.stream.record(event)
        self.stream.wait_for(event)
        event.wait()

    def batch(self) -> None:
        address, half = self.place(), PAGE // 2
        self.stream.fill(address, 1, PAGE)
        with self.stream.together():
            for i in range(0, half, 8192):
                self.stream.copy(address + i, address + half + i, 64)
        self.stream.synchronize()

    def pass_on(self) -> None:
        """Export a page, release it, and import it again by its file descriptor, which keeps the
        memory.
        """
        page = self.rng.choice(self.pages or [Page(10**6)])
        fd = self.gpu.export_page(page)
        try:
            self.gpu.release([page])
            self.pages.remove(page)
            self.pages.append(self.gpu.import_page(fd))
        finally:
            os.close(fd)

    def lock(self) -> None:
        buffer = host_buffer(PAGE)
        try:
            self.gpu.pin(buffer.address, PAGE)
        finally:
            while True:  # memory must not go while it is locked
                try:
                    self.gpu.unpin(buffer.address)
                    break
                except VmmError:
                    continue
            buffer.close()

    def replace_stream(self) -> None:
        self.stream.close()
        self.stream = self.gpu.stream()

    def sensible(self) -> bool:
        return self.rng.random() < 0.9

    def places(self) -> list[int]:
        """Addresses of all pages of our reservations; rarely an address outside of all."""
        ours = [a + i * PAGE for a, count in self.ranges.items() for i in range(count)]
        return ours if ours and self.sensible() else [0x10000]

    def mapped(self) -> list[int]:
        return [a + i for a, n in self.gpu._table.mapped for i in range(0, n, PAGE)]

    def place(self) -> int:
        """Address of a page, mostly of a mapped one."""
        mapped = self.mapped() if self.sensible() else []
        return self.rng.choice(mapped or self.places())

    def some(self) -> list[Page]:
        known = self.pages if self.sensible() else [*self.pages, Page(10**6)]
        return self.rng.sample(known, min(self.rng.choice([1, 1, 2, 3]), len(known)))

    def check(self) -> None:
        """Let the driver repeat failed undoings, and compare its books with the device."""
        calm(self.standin)
        self.gpu.check_integrity()
        leaks = self.standin.leaks()
        assert self.standin.used_bytes == self.gpu.used_bytes() == len(self.pages) * PAGE
        assert leaks["handles"] == len(self.pages)
        assert leaks["reservations"] == len(self.ranges)
        mapped = sum(nbytes for _, nbytes in self.gpu._table.mapped)
        assert leaks["mappings"] == mapped // PAGE
        assert leaks["registrations"] == 0

    def end(self) -> None:
        calm(self.standin)
        self.gpu.close()
        assert not any(self.standin.leaks().values()), self.standin.leaks()


CHOICES: list[Callable[[Sequence], None]] = [
    *(Sequence.reserve, Sequence.create, Sequence.release, Sequence.unreserve),
    *(Sequence.map, Sequence.map, Sequence.map, Sequence.map, Sequence.unmap, Sequence.unmap),
    *(Sequence.fill, Sequence.enqueue, Sequence.lock, Sequence.replace_stream),
    *(Sequence.batch, Sequence.pass_on),
]


def calm(standin: StandIn) -> None:
    """Use up the ordered failures that are left, with calls that change nothing."""
    for _ in range(ORDERS):
        cu.cuDriverGetVersion()


@pytest.fixture
def standin() -> Iterator[StandIn]:
    made = loaded()
    yield made
    made.reset()


def one_call(standin: StandIn, sequence: Sequence, rng: random.Random) -> str:
    """Outcome of one random call. In three of ten cases a call of the device fails during it or
    soon after.
    """
    if rng.random() < 0.3:
        standin.fail(rng.randint(1, ORDERS), None, rng.choice(INJECTED))
    act = rng.choice(CHOICES)
    try:
        act(sequence)
    except VmmError as error:
        return type(error).__name__
    return f"{act.__name__} done"


@pytest.mark.parametrize("sequences", SEQUENCES)
def test_no_page_is_lost_and_no_error_unnamed(standin: StandIn, sequences: int) -> None:
    rng, seen = random.Random(0), Counter[str]()
    for number in range(sequences):
        sequence = Sequence(standin, rng)
        for _ in range(CALLS):
            seen[one_call(standin, sequence, rng)] += 1
            sequence.check()
        one_call(standin, sequence, rng)  # what it leaves owed is closed with
        sequence.end()
        assert number < 200 or len(seen) > 12, "the sequences do too little"
    for act in CHOICES:
        assert seen[f"{act.__name__} done"] > sequences / 50, f"{act.__name__}: {seen}"
    for name in ("OutOfMemory", "DeviceError", "DeviceUnavailable", "DeviceLost", "AlreadyMapped"):
        assert seen[name] > sequences / 50, f"{name}: {seen}"
