"""Requests of vLLM's scheduler: as what stands beside it counts them, and as they lose blocks.

vLLM replaces its list of running requests, so nothing of it is kept here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


class EngineQueues:
    """The running and waiting requests of one scheduler of vLLM's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler

    @property
    def running(self) -> int:
        """Requests that run."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests that wait, those that load included."""
        return int(self._scheduler.get_request_counts()[1])

    @property
    def idle(self) -> bool:
        """True if no request runs, and none waits but for blocks that it loads."""
        return not self._scheduler.running and not self._scheduler.waiting

    @property
    def begun(self) -> int:
        """Requests that a draining turn must finish: running ones, and those preempted."""
        return self.running + self.preempted

    @property
    def preempted(self) -> int:
        """Requests that ran before; vLLM keeps them at the head of the queue."""
        status = RequestStatus.PREEMPTED
        return sum(1 for _ in takewhile(lambda r: r.status is status, self._scheduler.waiting))

    @property
    def may_begin(self) -> int:
        """Requests that may run beside those that do."""
        return int(self._scheduler.max_num_running_reqs) - self.running

    def to_compute(self) -> Iterator[int]:
        """Tokens for which each waiting request lacks blocks; those that load have the others."""
        for request in self._scheduler.kv_holding_waiting:
            yield max(0, request.num_tokens - request.num_computed_tokens)
        for request in self._scheduler.waiting:
            yield request.num_tokens

    # -- requests that load ---------------------------------------------------------------

    @property
    def loads(self) -> bool:
        """True if a request has blocks and waits for what is in them, or for more blocks."""
        return bool(self._scheduler.kv_holding_waiting)

    def unloaded(self) -> Iterator[str]:
        """Names of requests that wait, in the order in which vLLM will reach them."""
        return (request.request_id for request in self._scheduler.waiting)

    def loading(self) -> Iterator[str]:
        """Names of requests that have blocks and wait for what is in them, in the same order."""
        return (request.request_id for request in self._scheduler.kv_holding_waiting)

    def stuck(self, request: Any) -> bool:
        """True if a waiting request holds blocks, and no running one will free any."""
        return request.num_computed_tokens > 0 and not self._scheduler.running

    # -- requests that lose their blocks --------------------------------------------------

    def give_up_newest(self) -> bool:
        """Take all blocks of the newest request that runs, or has loaded and not gone on since.

        It waits then. False if there is none.
        """
        if (loaded := self._newest_loaded()) is not None:
            self._take_back(loaded)
        elif running := self._scheduler.running:
            self._scheduler._preempt_request(running.pop(), time.monotonic())
        else:
            return False
        return True

    def make_way(self) -> None:
        """Requests that have loaded hold all blocks, and none finds what it needs beside them."""
        if (newest := self._newest_loaded(but=1)) is not None:
            self._take_back(newest)

    def _newest_loaded(self, but: int = 0) -> Any | None:
        """Newest request that has loaded, the first `but` left out; None if none has."""
        waiting = list(self._scheduler.kv_holding_waiting)[but:]
        loaded = filter(self._scheduler._handle_blocked_waiting_request, reversed(waiting))
        return next(loaded, None)

    def _take_back(self, request: Any) -> None:
        """Preempt a request that vLLM holds to be waiting already."""
        ran = request.num_preemptions
        self._scheduler.kv_holding_waiting.remove_request(request)
        request.status = RequestStatus.RUNNING
        self._scheduler._preempt_request(request, time.monotonic())
        if not ran:  # its steps have yet to begin, for the runner too
            request.num_preemptions, request.status = 0, RequestStatus.WAITING
