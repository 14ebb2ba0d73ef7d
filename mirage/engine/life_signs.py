"""Signs of life of an engine, by which the control server tells a stuck engine from a busy one.

The agent's writer thread asks for them, also during a step, so only numbers and lengths are read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from mirage.engine import descendants
from mirage.engine.mailbox import Mailbox
from mirage.protocol import Pulse


class LifeSigns:
    """Count of the calls of vLLM's scheduler, and the pulse that reports it."""

    def __init__(self, mailbox: Mailbox, requests: Callable[[], tuple[int, int]]) -> None:
        """Initialise; `requests` returns the number of running and of waiting requests."""
        self._mailbox, self._requests = mailbox, requests
        self.calls = self._calls_told = 0
        self.begins_alone = False
        """True while the only requests are those of the engine's own first step."""

    def pulse(self) -> Pulse:
        """Return the next pulse.

        A call that is stuck counts as a request, because it may be the call that ends the last
        request.
        """
        requests = sum(self._requests()) or int(self._mailbox.is_held)
        if self.begins_alone and not self.calls:
            requests = 0  # vLLM's loop has not begun
        long = requests > 0 and self.calls == self._calls_told
        self._calls_told = self.calls
        children_s = descendants.cpu_seconds(os.getpid()) if long else 0.0
        return Pulse(self.calls, requests, time.process_time(), children_s)
