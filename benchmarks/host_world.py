"""A world whose engines compute on cores that the front ends of their requests want too."""

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
    """A request that is sent to `tenant`."""

    tenant: str
    request: SimulatedRequest
    way: list[tuple[str, int]]
    """Front ends that it has still to pass, with picoseconds of their work."""


class HostWorld(World):
    """Cores are shared by engines and front ends, at every moment.

    A step goes on more slowly from the moment on in which a front end begins to read, and faster
    once it has nothing left. Steps are single for that. What every tenant holds whenever it says so
    is noted.
    """

    def __init__(self, *, fronts: FrontEnds[Coming], **options: Any) -> None:
        super().__init__(**options | {"skipping": False})
        self.said: list[tuple[float, str, Report]] = []
        self._fronts = fronts
        self._paces: dict[str, int] = {}
        """Picoseconds of all of an engine's step beside those that want a core now."""
        self._wanting = 0, 0
        """Engines and front ends."""
        self._planned = 0
        """The newest plan for when a request is through; older ones are void."""

    def send(self, coming: Iterable[Coming]) -> None:
        """Requests are sent at their `arrival`, and reach their engines later."""
        for each in coming:
            self.later(each.request.arrival, partial(self._go_on, each))

    # -- what engines need --------------------------------------------------------------

    def report(self, engine: Engine, report: Report, leaves: int) -> None:
        self.said.append((leaves / PS, engine.name, report))
        super().report(engine, report, leaves)

    def co_runners(self, engine: Engine) -> tuple[int, int]:
        """A front end that reads is one more that computes."""
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
        """The request goes to its next front end, or to the engine."""
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
        """Another may want a core than before; `anew`, or front ends have other requests."""
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
        """The rest of a step takes as much longer, or less, as all of it would."""
        span, takes = engine.stepper.span, self._takes(engine)
        left = (span.end - self.now) * takes // self._paces[engine.name]
        span.first_ps = self.now + left - span.begin
        span.take(1)
        self._paces[engine.name] = takes
        engine.cut(self.now)  # sees the new end

    def _takes(self, engine: Engine) -> int:
        work = engine.stepper.work()
        return largest(engine.costs.bounds(work.sequences + work.prefill), work)[1]
