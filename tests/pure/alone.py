"""Stand-in for the world around one simulated engine."""

from __future__ import annotations

from mirage.control.demand import lacks_growth
from mirage.protocol import Refusal, Report
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.roofline import PS


class Alone:
    """Stand-in for the world around one simulated engine. It keeps the engine's reports. It answers
    requests for memory with a refusal (`refusing`) or not at all.
    """

    def __init__(self, skipping: bool = True, refusing: bool = False) -> None:
        self.skipping, self.refusing = skipping, refusing
        self.now = 0
        self.until = 1 << 62
        self.reports: list[Report] = []

    def now_s(self) -> float:
        return self.now / PS

    def report(self, engine: Engine, report: Report, leaves: int) -> None:
        self.reports.append(report)
        if self.refusing and lacks_growth(report):
            engine.receive(Refusal(report.revision), self.now)

    def co_runners(self, engine: Engine) -> tuple[int, int]:
        return 1, 1

    def co_runners_changed(self, engine: Engine) -> None:
        pass

    def began(self, engine: Engine) -> None:
        pass

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        pass

    def run(self, engine: Engine, until: int = 10**18) -> int:
        """Let `engine` handle its events up to the time `until` (picoseconds); return the number of
        events. Fails if time stands still.
        """
        same = events = 0
        while (time := engine.next_event) <= until:
            same = same + 1 if time <= self.now else 0
            assert same < 100, "time stands still"
            self.now = max(time, self.now)
            engine.wake(self.now)
            events += 1
        return events
