"""Copies of KV blocks between the device and the pool's memory, over streams of `vmm`.

All drivers use the same code: a host stream is a thread, a GPU's is a stream. Results of a step are
complete after an event of the compute side, which copies wait for on their stream. Blocks are
handed to the stream in portions, so that streamed layers keep their part of the link.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from mirage.streaming.compute import Compute
from mirage.tiers.contract import BlockPlace, Medium
from vmm.driver import Driver, Event, Stream, VmmError

logger = logging.getLogger("mirage.engine.tiers")

Runs = Callable[[int], Sequence[tuple[int, int]]]
"""Function that returns (address, bytes) of each contiguous run of one device block."""
Address = Callable[[BlockPlace], int]
"""Function that returns the address of a place in this process, and marks it as in use. It raises
`KeyError` if there is none."""
LetGo = Callable[[BlockPlace], None]
"""Function that ends one use of a place."""


@dataclass(eq=False)
class CopyJob:
    """Blocks that are copied together: all arrive, or the job has failed."""

    up: bool
    """True for copies to the device."""
    blocks: Sequence[int]
    places: Sequence[BlockPlace]
    rank: int = 0
    """Order among jobs towards the device: the lowest is issued first."""
    failed: bool = False
    issued: int = 0
    streams: dict[Medium, Stream] = field(default_factory=dict, repr=False)
    """Streams that make the job's copies, by medium."""
    done: list[Event] = field(default_factory=list, repr=False)
    """Events recorded after the last copy on each stream; empty before all copies are issued."""
    used: list[BlockPlace] = field(default_factory=list, repr=False)
    """Places that its copies may touch until `finished` returns it."""


class Copier:
    """Queue of copy jobs: `pump` issues submitted ones, `finished` returns those that have ended.

    Each medium has streams of its own, made by `stream`: a peer's link is not the host's.
    """

    def __init__(
        self,
        driver: Driver,
        compute: Compute,
        runs: Runs,
        address: Address,
        let_go: LetGo = lambda place: None,
        stream: Callable[[Medium], Stream] | None = None,
        media: Sequence[Medium] = (Medium.HOST,),
    ) -> None:
        self._driver, self._compute = driver, compute
        self._runs, self._address, self._let_go = runs, address, let_go
        self._jobs: deque[CopyJob] = deque()
        self._media = media
        self._make = stream or (lambda medium: driver.stream())
        self._streams: dict[tuple[bool, Medium], Stream] = {}

    @property
    def busy(self) -> bool:
        """True while there are jobs that `finished` has not returned."""
        return bool(self._jobs)

    def submit(self, job: CopyJob) -> None:
        """Queue a job; nothing is copied before `pump`."""
        self._jobs.append(job)

    def pump(self, most_bytes: float = inf) -> None:
        """Issue copies that take up to `most_bytes` of the host's link, loads first and by their
        rank.

        One block of each direction is issued at least: a stored block is pinned until it is copied,
        and if loads always came first it would stay pinned for good.
        """
        left, begun = most_bytes, set[bool]()
        for job in sorted(self._waiting(), key=lambda job: (not job.up, job.rank)):
            while job.issued < len(job.blocks) and not job.failed:
                nbytes = self._link_bytes(job)
                if job.up in begun and nbytes > left:
                    break
                self._issue(job)
                left -= nbytes
                begun.add(job.up)

    def issue(self, *, up: bool) -> None:
        """Issue all copies of one direction (`up`: to the device, else to the tier below)."""
        waiting = (job for job in self._waiting() if job.up == up)
        for job in sorted(waiting, key=lambda job: job.rank):
            self._issue_all(job)

    def before_steps(self, job: CopyJob) -> None:
        """Issue all copies of a job now; later steps, and later copies in the other direction, wait
        for them. If a copy is refused, the job has failed."""
        self._issue_all(job)
        if job.failed or not job.done:
            return
        try:
            for done in job.done:
                self._compute.wait(done)
                for medium in self._media:
                    self._stream(not job.up, medium).wait_for(done)
        except Exception as error:
            self._fail(job, error)

    def finished(self, *, up: bool) -> list[CopyJob]:
        """Return the jobs of one direction (`up`: to the device, else to the tier below) that have
        ended since the last call, failed ones included. The places that they used are released.
        """
        ended = [job for job in self._jobs if job.up == up and self._ended(job)]
        for job in ended:
            self._jobs.remove(job)
            self._leave(job)
        return ended

    def wait(self, *, up: bool) -> None:
        """Issue all jobs of one direction (`up`: to the device, else to the tier below), and wait
        for them; `finished` returns them afterwards."""
        self.issue(up=up)
        for job in self._jobs:
            if job.up == up and not self._ended(job):
                try:
                    for done in job.done:
                        done.wait()
                except Exception as error:
                    self._fail(job, error)

    def close(self) -> None:
        """Complete the issued copies, and drop the others."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        for job in self._jobs:
            self._leave(job)
        self._jobs.clear()

    def _leave(self, job: CopyJob) -> None:
        """End the uses of a job's places: nothing is copied from or to them any more."""
        while job.used:
            self._let_go(job.used.pop())

    def _waiting(self) -> list[CopyJob]:
        return [job for job in self._jobs if job.issued < len(job.blocks)]

    def _issue_all(self, job: CopyJob) -> None:
        """Issue the copies of a job that have not been issued yet, until one is refused."""
        while job.issued < len(job.blocks) and not job.failed:
            self._issue(job)

    def _issue(self, job: CopyJob) -> None:
        """Issue the copies of a job's next block."""
        try:
            copies = self._copies(job, job.issued)
            stream = self._stream_of(job, job.places[job.issued].medium)
            for copy in copies:
                stream.copy(*copy)
            job.issued += 1
            if job.issued == len(job.blocks):
                job.done = [self._recorded(stream) for stream in job.streams.values()]
        except (VmmError, KeyError, OSError) as error:
            self._fail(job, error)

    def _copies(self, job: CopyJob, number: int) -> list[tuple[int, int, int]]:
        place = job.places[number]
        at, copies = self._address(place), []
        job.used.append(place)
        for address, nbytes in self._runs(job.blocks[number]):
            copies.append((address, at, nbytes) if job.up else (at, address, nbytes))
            at += nbytes
        return copies

    def _link_bytes(self, job: CopyJob) -> int:
        """Return the bytes that the next block of a job takes on the host's link."""
        if job.places[job.issued].medium is Medium.PEER:
            return 0
        return sum(size for _, size in self._runs(job.blocks[job.issued]))

    def _stream_of(self, job: CopyJob, medium: Medium) -> Stream:
        """Return the stream of a job's copies from or to a medium; it waits for everything computed
        before the job."""
        if medium not in job.streams:
            stream = self._stream(job.up, medium)
            computed = self._driver.event()
            self._compute.record(computed)
            stream.wait_for(computed)
            job.streams[medium] = stream
        return job.streams[medium]

    def _stream(self, up: bool, medium: Medium) -> Stream:
        if (up, medium) not in self._streams:
            self._streams[up, medium] = self._make(medium)
        return self._streams[up, medium]

    def _recorded(self, stream: Stream) -> Event:
        event = self._driver.event()
        stream.record(event)
        return event

    def _ended(self, job: CopyJob) -> bool:
        if job.failed or not job.blocks:
            return True
        try:
            return bool(job.done) and all(done.reached() for done in job.done)
        except Exception as error:
            self._fail(job, error)
            return True

    def _fail(self, job: CopyJob, error: Exception) -> None:
        """Mark a job as failed, and close all streams of its direction. To close a stream waits for
        its copies in progress, so that no copy touches blocks that are freed afterwards. Later jobs
        get new streams.
        """
        logger.warning("copying %d KV blocks failed: %s", len(job.blocks), error)
        job.failed = True
        for up, medium in [pair for pair in self._streams if pair[0] == job.up]:
            self._streams.pop((up, medium)).close()
