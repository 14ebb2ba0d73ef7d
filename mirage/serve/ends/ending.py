"""End of an engine, and its evidence against the requests that it worked on. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

FROM_OUTSIDE = {
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
}
"""Signals that a process is sent, and does not raise over what it computes."""


class Evidence(Enum):
    """Strength of the evidence that the requests of an engine caused its end."""

    FAULT = "fault"
    """The engine failed by itself: a request may have caused it."""
    HANG = "hang"
    """The engine stopped answering: a request may have caused it, and so may much else."""
    NOTHING = "nothing"
    """The engine was ended from outside."""


@dataclass(frozen=True)
class Ending:
    """The first process of an engine that ended."""

    who: str = "engine core"
    status: int | None = None
    """Its exit code, or minus the signal that ended it; None if nobody could learn it."""
    error: str = ""
    """The class of the exception that ended its core, as that said itself."""
    hang: str = ""
    """Reason why it was taken for hung, and ended by the server."""
    unreachable: str = ""
    """Reason why nobody could reach it, for which the server ended it."""
    refused: str = ""
    """Breach of the control protocol for which the server ended it."""
    fault: str = ""
    """The driver's name of a fault of the GPU that ended it."""
    device: str = ""
    """Reason why the device has failed, if it ended by that."""
    stopped: bool = False
    """True if the server stopped it, for want of place or since its operator said so."""
    oom_kills: int = 0
    """Processes that the kernel's OOM killer ended on this machine at that time."""

    @property
    def evidence(self) -> Evidence:
        """An unknown status may have been a SIGKILL: it is evidence of nothing."""
        if self.refused or self.unreachable or self.device or self.stopped:
            return Evidence.NOTHING
        if self.hang:
            return Evidence.HANG
        if self.error:
            return Evidence.FAULT
        outside = not self.status or -self.status in FROM_OUTSIDE
        return Evidence.NOTHING if outside else Evidence.FAULT

    @property
    def from_outside(self) -> bool:
        """True if no request can have caused it, such as one that took all memory."""
        return self.evidence is Evidence.NOTHING and not self.unknown and not self.oom_kills

    @property
    def unknown(self) -> bool:
        """True if the exit status of the process could not be read."""
        by_us = self.refused or self.unreachable or self.device or self.stopped or self.hang
        return self.status is None and not by_us and not self.error

    def __str__(self) -> str:
        if self.stopped:
            return f"{self.who} was stopped"
        if self.device:
            return f"{self.who} ended: {self.device}"
        if self.refused:
            return f"{self.who} broke the control protocol ({self.refused})"
        if self.unreachable:
            return f"{self.who} could not be reached ({self.unreachable}) and was ended"
        if self.hang:
            return f"{self.who} hung ({self.hang}) and was ended"
        if self.error:
            fault = f" ({self.fault})" if self.fault else ""
            return f"{self.who} ended with {self.error}{fault}"
        if self.status is None:
            return f"{self.who} ended (exit status unknown)"
        if self.status >= 0:
            return f"{self.who} ended with exit code {self.status}"
        return f"{self.who} {self._by_signal(-self.status)}"

    def _by_signal(self, number: int) -> str:
        name = signal_name(number)
        if number == signal.SIGKILL and self.oom_kills:
            return f"was killed by the kernel's OOM killer ({name}): memory ran out on this machine"
        return f"was ended from outside ({name})" if number in FROM_OUTSIDE else f"ended by {name}"


def signal_name(number: int) -> str:
    """``"SIGKILL"``, or ``"signal 35"`` of one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def failed_step(ending: Ending, logged: str | None) -> str:
    """Reason of an `ending` in an engine's first step; empty unless the engine failed by itself.

    `logged` is the last error of its log, which tells of exceptions, and of nothing else.
    """
    if ending.evidence is not Evidence.FAULT:
        return ""
    excepted = ending.error or (ending.status or 0) > 0
    words = (excepted and logged) or f"its {ending}"
    return f"the first step of the model failed: {words}; try another dtype, or other engine_args"
