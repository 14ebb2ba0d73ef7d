"""The event loop: engines that compute in simulated time, and the controller between them.

A `SimulatedDomain` is memory that may move: one device with the `Arbiter` that serves real engines,
or, where memory is isolated, one tenant's share. A message takes `message_ps`, a report that
follows a move leaves when the move is over, and an engine acts on messages between two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf

from mirage.config import ConfigError
from mirage.control.arbiter import Arbiter
from mirage.protocol import PROTOCOL_VERSION, Allotment, Hello, Refusal, Report, Turn
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.roofline import NEVER, PS

At = Callable[[int], None]
"""Function that makes an event happen; it is called with the time in picoseconds."""
ToEngine = Allotment | Refusal | Turn
MOST_AT_ONCE = 1000
"""Most reports at one moment; more mean an endless loop between demand and allotments."""


class Observer:
    """Observer of the run of a world; each method is called right after the event. Subclasses
    override them.

    An observer changes nothing, except that it may add requests (`Engine.come`) when others finish.
    """

    def began(self, engine: Engine) -> None:
        """Note that an engine has begun a step, or a span of steps."""

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        """Note that a request has received its last token at this moment."""

    def reported(self, engine: Engine, report: Report) -> None:
        """Note that an engine has sent a report."""

    def happened(self) -> None:
        """Note that an event has been handled, with all that followed at the same moment."""


class EndlessWorld(ConfigError):
    """Error: an experiment has work that would not end before the simulated time `NEVER`."""


class World:
    """Simulated engines, run until none of them has work left.

    `skipping` simulates many equal steps in one go. With `co_running`, engines that compute at the
    same time share compute and link; without it, none slows another. Time begins at `start`
    picoseconds.
    """

    def __init__(
        self,
        *,
        skipping: bool = True,
        co_running: bool = True,
        message_ps: int = 0,
        start: int = 0,
    ) -> None:
        self.skipping, self.co_running = skipping, co_running
        self.observer = Observer()
        self.message_ps = message_ps
        self.now = start
        self.engines: list[Engine] = []
        self.domains: list[SimulatedDomain] = []
        self._domain_of: dict[str, SimulatedDomain] = {}
        self._under_way: list[tuple[int, int, At]] = []
        self._sent = count()
        self.until = NEVER
        self.next_time = start
        """Time in picoseconds before which nothing happens, unless a request is added."""
        self._started = False

    def add(
        self, arbiter: Arbiter, engines: Sequence[Engine], make: MakeDomain | None = None
    ) -> None:
        """Add engines whose memory `arbiter` divides. `make` makes their domain, by default a
        `SimulatedDomain`.
        """
        domain = (make or SimulatedDomain)(arbiter, engines, self.tell)
        self.domains.append(domain)
        self.engines += engines
        self._domain_of |= {engine.name: domain for engine in engines}

    def run(self, until: int = NEVER) -> None:
        """Simulate until all requests are done, or until the time `until`. Raises `EndlessWorld` if
        no `until` is given and work is left that will never be done.
        """
        self.until = until
        self.advance(until)
        if until == NEVER:
            self._check_ended()

    def advance(self, time: int) -> None:
        """Simulate all events before `time`. Steps that are under way then continue past it."""
        if not self._started:
            self._start()
        while True:
            self.next_time, happen = self._next()
            if self.next_time >= time:
                return
            assert self.next_time >= self.now, "time runs forward"
            self.now = self.next_time
            happen(self.now)
            self._wake_stirred()
            self.observer.happened()

    def come(self, engine: Engine, request: SimulatedRequest, now: int) -> None:
        """Add a request to an engine at `now`; all events before `now` have been simulated."""
        self.now = now
        engine.come(request, now)
        self.next_time = min(self.next_time, engine.next_event)

    def happens(self, event: At, now: int) -> None:
        """Let an event from outside happen at `now`; all events before `now` have been
        simulated.
        """
        if not self._started:
            self._start()
        self.now = now
        event(now)
        self._wake_stirred()
        self.observer.happened()
        self.next_time = now

    def _start(self) -> None:
        self._started = True
        for domain in self.domains:
            domain.start(self.now)
        self._wake_stirred()
        self.observer.happened()

    def _check_ended(self) -> None:
        """Raises `EndlessWorld` if work is left that will never be done."""
        left = [e.name for e in self.engines if e.has_work or e.next_event < NEVER]
        if left:
            raise EndlessWorld(
                f"simulated time passes {NEVER / PS / 86400:.0f} days with work left for "
                f"{left[0]!r}: raise the rate or a speed of the hardware, or lower time_scale"
            )

    def check(self) -> None:
        """Raises `LedgerError` or `AssertionError` if memory is over-committed."""
        for domain in self.domains:
            domain.check(self.now_s())

    # -- what engines need --------------------------------------------------------------

    def now_s(self) -> float:
        return self.now / PS

    def report(self, engine: Engine, report: Report, leaves: int) -> None:
        self.observer.reported(engine, report)
        domain = self._domain_of[engine.name]
        self.later(leaves + self.message_ps, partial(domain.hear, engine.name, report))

    def tell(self, engine: Engine, message: ToEngine) -> None:
        """Send a message from an arbiter to an engine; it arrives after `message_ps`."""
        self.later(self.now + self.message_ps, partial(engine.receive, message))

    def later(self, time: int, happen: At) -> None:
        """Call `happen` at `time`, in picoseconds, or immediately if that is not in the future."""
        if time <= self.now:
            happen(self.now)
        else:
            heappush(self._under_way, (time, next(self._sent), happen))

    def co_runners(self, engine: Engine) -> tuple[int, int]:
        """Number of engines that compute at this moment, `engine` included, and of those that
        stream; 1 and 1 in a world without `co_running`.
        """
        if not self.co_running:
            return 1, 1
        computes, streams = 1, int(engine.streams)
        for other in self.engines:
            if other.stepper.stepping and other is not engine:
                computes += 1
                streams += other.streams
        return computes, streams

    def co_runners_changed(self, engine: Engine) -> None:
        if not self.co_running:
            return
        for other in self.engines:
            if other is not engine and other.stepping:
                other.cut(self.now)

    def began(self, engine: Engine) -> None:
        self.observer.began(engine)

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        self.observer.finished(engine, request)

    # -- the loop -----------------------------------------------------------------------

    def _next(self) -> tuple[int, At]:
        """Time and action of the next event. Among events at one time, messages come first."""
        first, happen = NEVER, _nothing
        if self._under_way:
            first, happen = self._under_way[0][0], self._deliver
        for engine in self.engines:
            if engine.next_event < first:
                first, happen = engine.next_event, engine.wake
        for domain in self.domains:
            if domain.deadline < first:
                first, happen = max(domain.deadline, self.now), domain.decide
        return first, happen

    def _deliver(self, now: int) -> None:
        heappop(self._under_way)[2](now)

    def _wake_stirred(self) -> None:
        while stirred := [e for e in self.engines if e.stirred]:
            for engine in stirred:
                engine.stirred = False
                if not engine.stepping:
                    engine.wake(self.now)


class SimulatedDomain:
    """One arbiter and the engines whose memory it divides. Times are picoseconds."""

    def __init__(
        self, arbiter: Arbiter, engines: Iterable[Engine], tell: Callable[[Engine, ToEngine], None]
    ) -> None:
        self.arbiter = arbiter
        self._tell = tell
        self.engines = {engine.name: engine for engine in engines}
        self.deadline = NEVER
        """Time in picoseconds at which `decide` must be called next; `NEVER` if no time is set."""
        self._heard: deque[tuple[str, Report]] = deque()
        self._talking = False

    def start(self, now: int) -> None:
        """Let all engines join with the memory of their shares."""
        for name, engine in self.engines.items():
            holding = engine.holding
            hello = Hello(PROTOCOL_VERSION, name, 0, holding.shape, holding.held_bytes)
            self.arbiter.joined(hello, now / PS)
        self.decide(now)

    def hear(self, name: str, report: Report, now: int) -> None:
        """Receive a report, and handle all that follows at the same moment."""
        self._heard.append((name, report))
        if not self._talking:
            self._talk(now)

    def decide(self, now: int) -> None:
        """Let the arbiter decide, send its messages to the engines, and handle their answers."""
        self._talking = True
        self._send(now)
        self._talking = False
        self._talk(now)

    def check(self, now_s: float) -> None:
        self.arbiter.controller.check(now_s)
        held = sum(engine.holding.held_bytes for engine in self.engines.values())
        device = self.arbiter.controller.device_bytes
        assert held <= device, f"{held} bytes are held of {device}"

    def _talk(self, now: int) -> None:
        self._talking = True
        for _ in range(MOST_AT_ONCE):
            if not self._heard:
                break
            name, report = self._heard.popleft()
            self._take(name, report, now)
            self._send(now)
        else:
            raise RuntimeError(f"controller and engines never agree, at {now / PS:.6f} s")
        self._talking = False
        self.deadline = _picoseconds(self._due(now / PS))

    def _take(self, name: str, report: Report, now: int) -> None:
        """Pass a report to the arbiter."""
        self.arbiter.reported(name, report, now / PS)

    def _due(self, now_s: float) -> float | None:
        """Time in seconds at which the arbiter has to decide without another event; None for
        never.
        """
        return self.arbiter.next_deadline(now_s)

    def _send(self, now: int) -> None:
        for name, message in self.arbiter.decide(now / PS):
            self._tell(self.engines[name], message)


MakeDomain = Callable[
    [Arbiter, Sequence[Engine], Callable[[Engine, ToEngine], None]], SimulatedDomain
]


def _nothing(now: int) -> None: ...


def _picoseconds(seconds: float | None) -> int:
    """The first picosecond that, converted to seconds, is not before `seconds`; `NEVER` for None or
    inf.
    """
    if seconds is None or seconds == inf:
        return NEVER
    time, more = int(seconds * PS), 1
    while time / PS < seconds:
        time, more = time + more, 2 * more
    return time
