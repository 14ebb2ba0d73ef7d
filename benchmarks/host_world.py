"""Simulated world whose engines share the cores with front ends that read requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.front_ends import FrontEnds
from mirage.protocol import Report
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.roofline import PS
from mirage.simulate.span import largest
from mirage.simulate.world import World


@dataclass
class Coming:
    """A request on its way to the engine of `tenant`, with the front ends still before it."""

    tenant: str
    request: SimulatedRequest
    way: list[tuple[str, int]]
    """Front ends that it has still to pass, with picoseconds of their work."""


class HostWorld(World):
    """World in which engines and front ends share cores at every moment.

    A step becomes slower when a front end begins to read, and faster when that has read all. So
    steps are simulated one by one. All reports of engines are kept with their times.
    """

    def __init__(self, *, fronts: FrontEnds[Coming], **options: Any) -> None:
        super().__init__(**options | {"skipping": False})
        self.said: list[tuple[float, str, Report]] = []
        self._fronts = fronts
        self._paces: dict[str, int] = {}
        """Picoseconds that each engine's whole step takes, beside the processes that want a core
        now.
        """
        self._wanting = 0, 0
        """Number of engines that compute, and of front ends that read, when the cores were shared
        last.
        """
        self._planned = 0
        """Number of the newest scheduled call of `_through`; older calls do nothing."""

    def send(self, coming: Iterable[Coming]) -> None:
        """Send requests at their `arrival`; they reach their engines later."""
        for each in coming:
            self.later(each.request.arrival, partial(self._go_on, each))

    # -- what engines need --------------------------------------------------------------

    def report(self, engine: Engine, report: Report, leaves: int) -> None:
        self.said.append((leaves / PS, engine.name, report))
        super().report(engine, report, leaves)

    def co_runners(self, engine: Engine) -> tuple[int, int]:
        """Number of processes that want a core (engines that compute, front ends that read), and
        number of engines that stream."""
        computing, streaming = super().co_runners(engine)
        return computing + self._fronts.reading, streaming

    def co_runners_changed(self, engine: Engine) -> None:
        super().co_runners_changed(engine)
        self._share()

    def began(self, engine: Engine) -> None:
        super().began(engine)
        self._paces[engine.name] = self._takes(engine)
        self._share()

    # -- cores --------------------------------------------------------------------------

    def _go_on(self, coming: Coming, now: int) -> None:
        """Pass a request on to its next front end, or to its engine."""
        if coming.way:
            name, work_ps = coming.way.pop(0)
            self._fronts.take(name, coming, work_ps, now)
            self._share(anew=True)
            return
        coming.request.arrival = now
        engine = next(e for e in self.engines if e.name == coming.tenant)
        engine.come(coming.request, now)

    def _through(self, planned: int, now: int) -> None:
        if planned != self._planned:
            return
        for _, coming in self._fronts.through(now):
            self._go_on(coming, now)
        self._share(anew=True)

    def _share(self, *, anew: bool = False) -> None:
        """Share the cores anew if the number of processes that want one has changed, or (`anew`) if
        front ends have other requests.
        """
        wanting = sum(engine.stepping for engine in self.engines), self._fronts.reading
        if wanting == self._wanting and not anew:
            return
        self._wanting = wanting
        self._fronts.beside(wanting[0], self.now)
        for engine in self.engines:
            if engine.stepping:
                self._pace(engine)
        self._planned += 1
        if (end := self._fronts.next_end()) is not None:
            self.later(end, partial(self._through, self._planned))

    def _pace(self, engine: Engine) -> None:
        """Adapt the end of an engine's step to the present number of processes on the cores: the
        rest of the step becomes longer or shorter by the factor by which a whole step would.
        """
        span, takes = engine.stepper.span, self._takes(engine)
        left = (span.end - self.now) * takes // self._paces[engine.name]
        span.first_ps = self.now + left - span.begin
        span.take(1)
        self._paces[engine.name] = takes
        engine.cut(self.now)  # sees the new end

    def _takes(self, engine: Engine) -> int:
        work = engine.stepper.work()
        return largest(engine.costs.bounds(work.sequences + work.prefill), work)[1]
