"""Requests of vLLM's scheduler: their counts, and the ways in which they lose blocks.

vLLM replaces its list of running requests, so no list is kept here.
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
    """Running and waiting requests of one of vLLM's schedulers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler

    @property
    def running(self) -> int:
        """Number of running requests."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Number of waiting requests, those that load included."""
        return int(self._scheduler.get_request_counts()[1])

    @property
    def idle(self) -> bool:
        """True if no request runs, and none waits except for blocks that it loads."""
        return not self._scheduler.running and not self._scheduler.waiting

    @property
    def begun(self) -> int:
        """Number of requests that a draining turn must finish: running ones, and preempted ones."""
        return self.running + self.preempted

    @property
    def preempted(self) -> int:
        """Number of waiting requests that ran before; vLLM keeps them at the head of the queue."""
        status = RequestStatus.PREEMPTED
        return sum(1 for _ in takewhile(lambda r: r.status is status, self._scheduler.waiting))

    @property
    def may_begin(self) -> int:
        """Number of requests that may run besides those that do."""
        return int(self._scheduler.max_num_running_reqs) - self.running

    def to_compute(self) -> Iterator[int]:
        """Yield for each waiting request the number of tokens for which it lacks blocks; requests
        that load have blocks for their other tokens."""
        for request in self._scheduler.kv_holding_waiting:
            yield max(0, request.num_tokens - request.num_computed_tokens)
        for request in self._scheduler.waiting:
            yield request.num_tokens

    # -- requests that load ---------------------------------------------------------------

    @property
    def loads(self) -> bool:
        """True if a waiting request has blocks, and waits for their content or for more blocks."""
        return bool(self._scheduler.kv_holding_waiting)

    def unloaded(self) -> Iterator[str]:
        """Return the names of requests that wait and have no blocks, in the order in which vLLM
        will reach them."""
        return (request.request_id for request in self._scheduler.waiting)

    def loading(self) -> Iterator[str]:
        """Return the names of requests that have blocks and wait for their content, in the order in
        which vLLM will reach them."""
        return (request.request_id for request in self._scheduler.kv_holding_waiting)

    def stuck(self, request: Any) -> bool:
        """True if `request`, which waits, holds blocks, and no request runs that could free any."""
        return request.num_computed_tokens > 0 and not self._scheduler.running

    # -- requests that lose their blocks --------------------------------------------------

    def give_up_newest(self) -> bool:
        """Preempt the newest request that has loaded and not gone on since, or if there is none the
        newest that runs; it waits afterwards.

        False if there is neither.
        """
        if (loaded := self._newest_loaded()) is not None:
            self._take_back(loaded)
        elif running := self._scheduler.running:
            self._scheduler._preempt_request(running.pop(), time.monotonic())
        else:
            return False
        return True

    def make_way(self) -> None:
        """Preempt the newest of the waiting requests that have loaded their blocks; the first in
        the queue of those that hold blocks is spared. The scheduler calls it when such requests
        hold all blocks and none finds those that it still needs."""
        if (newest := self._newest_loaded(but=1)) is not None:
            self._take_back(newest)

    def _newest_loaded(self, but: int = 0) -> Any | None:
        """Return the newest waiting request that has loaded, without the first `but` ones in the
        queue of those that hold blocks; None if there is none."""
        waiting = list(self._scheduler.kv_holding_waiting)[but:]
        loaded = filter(self._scheduler._handle_blocked_waiting_request, reversed(waiting))
        return next(loaded, None)

    def _take_back(self, request: Any) -> None:
        """Preempt a request that is in vLLM's waiting queue."""
        ran = request.num_preemptions
        self._scheduler.kv_holding_waiting.remove_request(request)
        request.status = RequestStatus.RUNNING
        self._scheduler._preempt_request(request, time.monotonic())
        if not ran:  # its steps have yet to begin, for the runner too
            request.num_preemptions, request.status = 0, RequestStatus.WAITING
