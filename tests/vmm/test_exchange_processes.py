"""Processes that pass the pages of one full device through a depot, and are killed over it.

The device is exactly as large as what they may hold together, and memory counts for as long as
a descriptor of it is open anywhere: who took a page that was not free would be refused.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from select import select

import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")

from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from vmm.depot import Depot
from vmm.driver import OutOfMemory
from vmm.exchange import Exchange

pytestmark = pytest.mark.vmm

PAGE, PAGES = 65536, 32
LIMIT_S = 30.0
MOVES, KILL_EVERY = 1000, 40


class Mover:
    """See `tests.vmm.libcuda.mover`."""

    def __init__(self, shared: str, depot: Path, number: int) -> None:
        words = [shared, str(PAGES * PAGE), str(PAGE), str(depot), str(number)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.vmm.libcuda.mover", *words],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.held = self.tries = 0
        assert self._answer() == "ready"

    def tell(self, word: str, count: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{word} {count}\n")
        self.process.stdin.flush()

    def ask(self, word: str, count: int) -> None:
        """Raises `EOFError` if it has ended over it."""
        self.tell(word, count)
        self.hear()

    def hear(self) -> None:
        """What came of the last thing that it was told."""
        held, tries, clear = self._answer().split()
        assert clear == "clear", "bytes of another process could be read"
        self.held, self.tries = int(held), int(tries)

    def kill(self) -> None:
        with self.process:
            self.process.kill()

    def _answer(self) -> str:
        assert self.process.stdout
        ready, _, _ = select([self.process.stdout], [], [], LIMIT_S)
        assert ready, "no answer"
        if not (line := self.process.stdout.readline()):
            raise EOFError
        return line.strip()


class Device:
    """The device, the depot and the processes; the test is the ledger."""

    def __init__(self, folder: Path, standin: StandIn, **how: float) -> None:
        self.folder, self.how = folder, how
        self.file = os.memfd_create("device")
        self.shared = f"/proc/{os.getpid()}/fd/{self.file}"
        standin.reset(PAGES * PAGE, PAGE)
        standin.share(self.shared)
        from vmm.cuda import CudaDriver

        self.driver = CudaDriver(PAGE, shareable=True, tensors_on="cpu")
        self.movers: list[Mover] = []
        self.depot = self.new_depot()

    def new_depot(self) -> Depot:
        depot = Depot(self.folder / "depot", **self.how)  # type: ignore[arg-type]
        depot.start()
        return depot

    def mover(self, number: int) -> Mover:
        made = Mover(self.shared, self.folder / "depot", number)
        self.movers.append(made)
        return made

    def free(self) -> int:
        """Pages that nobody has, not the depot either."""
        return self.driver.memory_info()[0] // PAGE

    def close(self) -> None:
        for mover in self.movers:
            mover.kill()
        self.depot.stop()
        self.driver.close()
        os.close(self.file)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Device]]:
    standin, made = loaded(), []

    def begin(**how: float) -> Device:
        made.append(Device(tmp_path, standin, **how))
        return made[-1]

    yield begin
    for device in made:
        device.close()
    assert not any(standin.leaks().values()), standin.leaks()
    standin.reset()


def until(what: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def test_pages_go_through_the_depot_and_carry_old_bytes_that_nobody_reads(
    make: Callable[..., Device], tmp_path: Path
) -> None:
    device = make(linger_s=30.0)
    one, other = device.mover(1), device.mover(2)
    one.ask("take", PAGES)
    one.ask("give", 20)
    assert device.free() == 0 and device.depot.counts()["held"] == 20, "they exist on"
    with pytest.raises(OutOfMemory):
        device.driver.create(1)
    seen = raw(device, tmp_path)
    assert seen == 1, "what the depot hands out is as it was left"
    other.ask("take", 20)  # and asserts that all it mapped is clear
    assert other.held == 20 and other.tries == 1
    assert device.depot.counts()["passed"] == 21


def raw(device: Device, folder: Path) -> int:
    """A byte of a page that is taken and not cleared; it goes back."""
    import ctypes

    exchange = Exchange(device.driver, folder / "depot", device.driver.facts.uuid, "raw")
    (page,) = exchange.withdraw(1)
    address = device.driver.reserve(PAGE)
    device.driver.map(address, [page])
    byte = ctypes.string_at(address, 1)[0]
    device.driver.unmap(address, PAGE)
    device.driver.unreserve(address)
    exchange.deposit([page])
    exchange.close()
    return byte


def test_a_thousand_random_moves_are_all_had_at_once(make: Callable[..., Device]) -> None:
    """The device is full throughout: each page that is taken was given by another before."""
    device, dice = make(), random.Random(20)
    movers = [device.mover(1), device.mover(2)]
    movers[0].ask("take", PAGES)
    for _ in range(MOVES):
        giver, taker = dice.sample(movers, 2)
        if giver.held == 0:
            giver, taker = taker, giver
        count = dice.randint(1, giver.held)
        giver.ask("give", count)
        taker.ask("take", count)
        assert taker.tries == 1, "nothing was missing, and nothing was waited for"
    assert sum(mover.held for mover in movers) == PAGES
    assert device.depot.counts()["passed"] > MOVES
    for mover in movers:
        mover.ask("give", mover.held)
    until(lambda: device.free() == PAGES)


@pytest.mark.parametrize("linger_s", [0.005, 30.0])
def test_what_a_ledger_counts_free_is_had_at_once_by_several_at_the_same_time(
    make: Callable[..., Device], linger_s: float
) -> None:
    """A grant counts from when it is told, what is given back from when that is reported."""
    device, dice = make(linger_s=linger_s), random.Random(3)
    movers = [device.mover(number) for number in (1, 2, 3)]
    reserved = dict.fromkeys(movers, 0)
    busy: set[Mover] = set()
    for _ in range(MOVES):
        if busy:
            streams = {mover.process.stdout: mover for mover in busy}
            ready, _, _ = select(list(streams), [], [], LIMIT_S if len(busy) == 3 else 0)
            for stream in ready:
                mover = streams[stream]
                mover.hear()
                assert mover.tries <= 1, "granted and not free"
                reserved[mover] = mover.held
                busy.discard(mover)
        idle = [mover for mover in movers if mover not in busy]
        if not idle:
            continue
        mover, free = dice.choice(idle), PAGES - sum(reserved.values())
        if dice.random() < 0.5 and mover.held:
            mover.tell("give", dice.randint(1, mover.held))
        elif free:
            granted = dice.randint(1, free)
            reserved[mover] += granted
            mover.tell("take", granted)
        else:
            continue
        busy.add(mover)
    for mover in busy:
        mover.hear()
    # How many pages pass, and how many are given and taken between, depends on the machine.
    assert device.depot.counts()["passed"] > 0
    for mover in movers:
        mover.ask("give", mover.held)
    device.depot.shut().result(5)
    assert device.free() == PAGES


def test_whoever_is_killed_whenever_all_memory_comes_back(make: Callable[..., Device]) -> None:
    device, dice = make(linger_s=0.2), random.Random(7)
    movers = [device.mover(1), device.mover(2)]
    movers[0].ask("take", PAGES // 2)
    movers[1].ask("take", PAGES // 2)
    for move in range(MOVES // 4):
        at = dice.randrange(2)
        if move % KILL_EVERY:
            exchanged(dice, movers[at], movers[1 - at])
            continue
        word = dice.choice(["give", "take"]) if movers[at].held else "take"
        # It may hold nothing more than was free, as the ledger would have it.
        room = PAGES - sum(mover.held for mover in movers)
        most = movers[at].held if word == "give" else room
        killed(dice, movers[at], word, dice.randint(0, most))
        movers[at] = device.mover(1 + at)
    for mover in movers:
        mover.ask("give", mover.held)
    until(lambda: device.free() == PAGES)
    assert device.depot.counts()["held"] == 0


def exchanged(dice: random.Random, giver: Mover, taker: Mover) -> None:
    giver.ask("give", dice.randint(0, giver.held))
    taker.ask("take", dice.randint(0, PAGES - giver.held - taker.held))


def killed(dice: random.Random, mover: Mover, word: str, count: int) -> None:
    """In the middle of it, before or after."""
    killer = threading.Timer(dice.uniform(0, 0.02), mover.process.kill)
    mover.tell(word, count)
    killer.start()
    with suppress(EOFError):
        mover._answer()
    killer.join()
    mover.kill()


def test_a_depot_that_goes_is_done_without(make: Callable[..., Device]) -> None:
    device = make(linger_s=30.0)
    one, other = device.mover(1), device.mover(2)
    one.ask("take", PAGES)
    one.ask("give", 10)
    device.depot.stop()
    assert device.free() == 10, "what it held is free"
    other.ask("take", 10)
    one.ask("give", 10)
    other.ask("take", 10)
    assert (one.held, other.held) == (PAGES - 20, 20)


def test_while_it_is_shut_what_is_given_is_free_for_all(make: Callable[..., Device]) -> None:
    device = make(linger_s=30.0)
    one = device.mover(1)
    one.ask("take", PAGES)
    one.ask("give", 10)
    device.depot.shut().result(5)
    assert device.free() == 10
    one.ask("give", 5)
    assert device.free() == 15
    device.depot.open().result(5)
    one.ask("give", 5)
    assert device.free() == 15 and device.depot.counts()["held"] == 5


def test_a_full_one_leaves_the_rest_to_the_device(make: Callable[..., Device]) -> None:
    device = make(linger_s=30.0, most=4)
    one, other = device.mover(1), device.mover(2)
    one.ask("take", PAGES)
    one.ask("give", 10)
    assert device.free() == 6 and device.depot.counts()["held"] == 4
    other.ask("take", 10)
    assert other.tries == 1 and device.free() == 0


def test_other_sizes_of_pages_do_not_mix(make: Callable[..., Device], tmp_path: Path) -> None:
    from vmm.cuda import CudaDriver

    device = make(linger_s=0.2)
    one = device.mover(1)
    one.ask("take", PAGES)
    one.ask("give", 4)
    with CudaDriver(2 * PAGE, shareable=True, tensors_on="cpu") as large:
        exchange = Exchange(large, tmp_path / "depot", large.facts.uuid, "large")
        assert exchange.withdraw(2) == []
        exchange.close()
        until(lambda: device.free() == 4)
        large.release(large.create(2))
