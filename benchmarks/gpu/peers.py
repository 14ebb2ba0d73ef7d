"""Another GPU's memory, lent by a holder process and used from this GPU, as `tiers.peer` does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.bench import MIB, Bench
from benchmarks.gpu.rows import Row, Skipped, median, timed
from mirage.tiers.blocks import Name
from mirage.tiers.holes import ByteRange
from mirage.tiers.lending.borrower import Borrower
from mirage.tiers.lending.lenders import PROGRAM, Lenders
from mirage.tiers.region import Region
from vmm.cuda import CudaDriver
from vmm.cuda_device import device_count, device_facts
from vmm.cuda_slab import Slab, reachable
from vmm.host import host_buffer

NEAR, FAR = 0, 1
PATIENCE_S = 10.0
NAME = "gpu1"


class _Heard:
    """Stand-in for the pool, which records the holder's messages."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def moved(self, name: Name, *, whole: bool) -> None:
        self.words.append("moved" if whole else "not moved")

    def returned(self, offset: int) -> None:
        self.words.append("returned")

    def lent_in_vain(self, offset: int) -> None:
        self.words.append("lent in vain")

    def lost(self, device: str) -> None:
        self.words.append("lost")

    def until(self, word: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while word not in self.words:
            assert time.monotonic() < end, f"{word!r} was not said: {self.words}"
            time.sleep(0.001)


def lent(bench: Bench) -> Row:
    """Row on lent memory: bytes are copied to the other GPU and back, and its memory is free again
    once nothing uses it.
    """
    _check_two()
    nbytes = (4 if bench.dry else 256) * MIB
    with (
        bench.open(bench.page_bytes) as near,
        bench.open(device=FAR) as far,
        _holder(bench, nbytes) as (heard, lenders, borrower),
    ):
        before = far.memory_info()[0]
        assert lenders.lend(NAME, ByteRange(0, nbytes))
        there = borrower.use(0)
        taken = before - far.memory_info()[0]
        wrong, seconds = _there_and_back(near, there, nbytes, bench.rounds)
        lenders.take_back(NAME, ByteRange(0, nbytes))
        time.sleep(0.05)
        early = "returned" in heard.words
        borrower.let_go(0)
        heard.until("returned")
        kept = before - far.memory_info()[0]
        killed = _killed(lenders, heard, borrower, nbytes)
    right = not wrong and not early and not killed and taken >= nbytes and kept < nbytes // 2
    words = f"{nbytes / seconds / 1e9:.1f} GB/s from GPU {FAR}"
    if not right:
        words += f"; {wrong} bytes wrong, {taken} taken, {kept} kept, too early {early}, {killed}"
    return Row(
        "another GPU's memory",
        f"{nbytes // MIB} MiB lent by a process, copied there and back, given back; it is killed",
        words,
        "all right",
        right,
        {"bytes_per_s": nbytes / seconds},
    )


def _check_two() -> None:
    if device_count() <= FAR:
        raise Skipped(f"it takes two GPUs, {device_count()} can be seen")
    if not reachable(NEAR, FAR):
        raise Skipped(f"GPU {NEAR} cannot reach the memory of GPU {FAR}")
    if not device_facts(FAR).shareable:
        raise Skipped(f"GPU {FAR} cannot share memory by file descriptors")


@contextmanager
def _holder(bench: Bench, nbytes: int) -> Iterator[tuple[_Heard, Lenders, Borrower]]:
    heard, host = _Heard(), Region.create(MIB)
    with TemporaryDirectory(prefix="mirage-") as folder:
        lenders = Lenders({NAME: FAR}, lambda name: Path(folder) / "peer.sock", _program(bench))
        driver = None
        try:
            by = lenders.start(heard, host.fd, {NAME: 0}, {NAME: nbytes})
            driver = bench.open(bench.page_bytes)
            borrower = Borrower(by, partial(Slab.borrow, driver))
            yield heard, lenders, borrower
            borrower.close()
        finally:
            if driver is not None:
                driver.close()
            lenders.end()
            host.close()


def _program(bench: Bench) -> list[str]:
    if not bench.dry:
        return list(PROGRAM)
    from tests.vmm.libcuda.lending import program

    facts = device_facts(NEAR)
    return program(bench.device, facts.total_bytes, facts.granularity)


def _there_and_back(near: CudaDriver, there: int, nbytes: int, rounds: int) -> tuple[int, float]:
    """Number of wrong bytes after a copy to the peer's memory at the address `there` and back, and
    the median seconds of a copy back.
    """
    here, stream = near.reserve(2 * nbytes), near.stream()
    near.map(here, near.create(2 * nbytes // near.page_bytes))
    sent, got = host_buffer(nbytes), host_buffer(nbytes)
    for buffer in (sent, got):
        near.pin(buffer.address, nbytes)
    view = sent.tensor()
    view.copy_(view.new_tensor(range(251)).repeat(nbytes // 251 + 1)[:nbytes])
    near.copy(here, sent.address, nbytes)
    for dst, src in ((there, here), (here + nbytes, there)):
        stream.copy(dst, src, nbytes)
    stream.synchronize()
    near.copy(got.address, here + nbytes, nbytes)
    wrong = int((got.tensor() != view).sum())

    def copied() -> None:
        stream.copy(here, there, nbytes)
        stream.synchronize()

    seconds = median([timed(copied) for _ in range(rounds)])
    stream.close()
    for buffer in (sent, got):
        near.unpin(buffer.address)
        buffer.close()
    return wrong, seconds


def _killed(lenders: Lenders, heard: _Heard, borrower: Borrower, nbytes: int) -> str:
    """Description of what is wrong after the holder was killed; empty if nothing is."""
    lenders.lend(NAME, ByteRange(0, nbytes))
    borrower.use(0)
    borrower.let_go(0)
    os.kill(lenders.pids()[NAME], signal.SIGKILL)
    heard.until("lost")
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            borrower.use(0)
        except KeyError:
            return ""
        borrower.let_go(0)
        time.sleep(0.001)
    return "a killed holder's memory is still used"
