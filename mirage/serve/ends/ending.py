"""End of an engine, and its evidence against the requests that were running. Pure."""

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
"""Signals that other processes send; a process does not raise them by what it computes."""


class Evidence(Enum):
    """Strength of the evidence that the requests of an engine caused its end."""

    FAULT = "fault"
    """The engine failed by itself: a request may have caused that."""
    HANG = "hang"
    """The engine stopped answering: a request may have caused that, but so may many other
    things.
    """
    NOTHING = "nothing"
    """Any other end: by a signal from outside, by this server, with the device, with exit code 0,
    or with an unknown exit status.
    """


@dataclass(frozen=True)
class Ending:
    """End of an engine, by its process that ended first."""

    who: str = "engine core"
    status: int | None = None
    """Exit code of that process, or minus the signal that ended it; None if it could not be
    read.
    """
    error: str = ""
    """Class of the exception that ended the core, as the core told it; else empty."""
    hang: str = ""
    """Reason why the server took the engine for hung and ended it; else empty."""
    unreachable: str = ""
    """Reason why the engine could not be reached, for which the server ended it; else empty."""
    refused: str = ""
    """Breach of the control protocol for which the server ended the engine; else empty."""
    fault: str = ""
    """The driver's name of the GPU fault that ended the engine; else empty."""
    device: str = ""
    """Reason why the device has failed, if the engine ended by that; else empty."""
    stopped: bool = False
    """True if the server stopped it: others needed its memory, or an operator asked for it."""
    oom_kills: int = 0
    """Processes that the kernel's OOM killer ended on this machine around that time."""

    @property
    def evidence(self) -> Evidence:
        """Evidence against the requests that were running.

        An unknown exit status is no evidence, since the process may have been ended by a SIGKILL.
        """
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
        """True if no request can have caused the end, not even by taking all memory."""
        return self.evidence is Evidence.NOTHING and not self.unknown and not self.oom_kills

    @property
    def unknown(self) -> bool:
        """True if the exit status of the process could not be read, and neither the server nor the
        core has told a reason for the end.
        """
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
    """Name such as ``"SIGKILL"``, or ``"signal 35"`` for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def failed_step(ending: Ending, logged: str | None) -> str:
    """Reason why an engine's first step failed; empty unless the engine failed by itself.

    `logged` is the last error in its log. It is used only if an exception ended the engine.
    """
    if ending.evidence is not Evidence.FAULT:
        return ""
    excepted = ending.error or (ending.status or 0) > 0
    words = (excepted and logged) or f"its {ending}"
    return f"the first step of the model failed: {words}; try another dtype, or other engine_args"
