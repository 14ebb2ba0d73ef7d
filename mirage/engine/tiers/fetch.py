"""Fetch of one request from the pool: its states, and the events between them. Pure.

    IDLE --SOUGHT--> SEEKING --DELAYED--> WAITING
     ^                |  ^                 |   |
     |                |  +-----REACHED-----+   |
     +----ADMITTED----+------------------------+
     |                |                        |
     |                +---------LOADS----------+
     |                v
     |             LOADING --FAILED--> FAILING
     |                |                   |
     |              ENDED               ENDED
     |                v                   v
     +----STARTED--- DONE              COMPUTE

The *pool* is the memory for KV blocks below the device, `mirage.tiers`.

From DONE it can be SOUGHT again, if the request lost its blocks before it started. A request that
has FINISHED is GONE; if its load is in progress it is ABANDONED first. The pool keeps blocks for a
request from the time they were sought until it is admitted without a load, or its load has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto


class FetchState(Enum):
    """State of a request's fetch."""

    IDLE = auto()
    """The pool is not asked: the request is new, runs, or was preempted."""
    SEEKING = auto()
    """The pool was asked for the request's blocks."""
    WAITING = auto()
    """The scheduler reached the request, which waits until the pool answers or brings blocks up."""
    LOADING = auto()
    """The request has memory for its blocks, and they are copied to it."""
    FAILING = auto()
    """As LOADING, but a copy has failed."""
    DONE = auto()
    """The blocks have arrived, and the request has not started since."""
    COMPUTE = auto()
    """The load failed. The request computes, and the pool is not asked for it again."""
    ABANDONED = auto()
    """The request has ended, and its load has not."""
    GONE = auto()
    """The request has ended and is forgotten."""


class FetchEvent(Enum):
    """Event of a request that changes the state of its fetch."""

    SOUGHT = auto()
    """The pool is asked for the request's blocks, or for more of them."""
    REACHED = auto()
    """The scheduler considers the request."""
    DELAYED = auto()
    """The request waits for a block, because that is faster than computing it."""
    LOADS = auto()
    """The request has memory for the blocks that it loads."""
    ADMITTED = auto()
    """The request has memory, and loads nothing."""
    FAILED = auto()
    """A copy of the request's load failed."""
    ENDED = auto()
    """The request's load has ended, successfully or not."""
    STARTED = auto()
    """The request's first step after the load is scheduled."""
    FINISHED = auto()
    """The request has ended, or was aborted."""


_S, _E = FetchState, FetchEvent

CHANGES: Mapping[FetchEvent, Mapping[FetchState, FetchState]] = {
    _E.SOUGHT: {_S.IDLE: _S.SEEKING, _S.DONE: _S.SEEKING},
    _E.REACHED: {_S.WAITING: _S.SEEKING},
    _E.DELAYED: {_S.SEEKING: _S.WAITING},
    _E.LOADS: {_S.SEEKING: _S.LOADING, _S.WAITING: _S.LOADING},
    _E.ADMITTED: {_S.SEEKING: _S.IDLE, _S.WAITING: _S.IDLE},
    _E.FAILED: {_S.LOADING: _S.FAILING},
    _E.ENDED: {_S.LOADING: _S.DONE, _S.FAILING: _S.COMPUTE, _S.ABANDONED: _S.GONE},
    _E.STARTED: {_S.DONE: _S.IDLE},
    _E.FINISHED: {
        _S.IDLE: _S.GONE,
        _S.SEEKING: _S.GONE,
        _S.WAITING: _S.GONE,
        _S.LOADING: _S.ABANDONED,
        _S.FAILING: _S.ABANDONED,
        _S.DONE: _S.GONE,
        _S.COMPUTE: _S.GONE,
    },
}
"""Transitions by event, from a state to the next. An event leaves a state that is not listed
unchanged."""

ASKS = frozenset({_S.SEEKING, _S.WAITING, _S.LOADING})
"""States in which a block that the scheduler wants is looked up in the pool; in the others it is
computed."""
UNDER_WAY = frozenset({_S.LOADING, _S.FAILING, _S.ABANDONED})
"""States with a load in progress."""
HELD = frozenset({_S.SEEKING, _S.WAITING}) | UNDER_WAY
"""States in which the pool keeps blocks for the request."""
CLOSED = frozenset({_S.COMPUTE, _S.ABANDONED, _S.GONE})
"""States in which the pool is not asked any more."""
NOT_ASKED = -1
"""Mark that is lower than every mark of `Recent`."""


@dataclass(slots=True)
class Fetch:
    """Fetch of one request, from its entry into the queue until it is forgotten."""

    state: FetchState = FetchState.IDLE
    mark: int = NOT_ASKED
    """Mark of `Recent` at the time when the pool was asked."""
    asked_s: float | None = None
    """Time in seconds at which the request first waited for the pool since the pool was asked; None
    if it did not wait."""
    late: bool = False
    """True if the request has stopped waiting for the pool since the pool was asked."""
    put_off_s: float | None = None
    """Time in seconds since which the request waits for copies that other requests make; None if it
    does not, and again once it has memory."""
    tokens: int = 0
    """Number of tokens that the request loads, or loaded last."""

    @property
    def held(self) -> bool:
        """True if the pool keeps blocks for the request."""
        return self.state in HELD

    @property
    def waits_itself(self) -> bool:
        """True if the request waits for its own blocks, and not for copies of others."""
        return self.state is FetchState.WAITING or self.state in UNDER_WAY

    def on(self, event: FetchEvent) -> bool:
        """Change the state by an event. True if the pool kept blocks for the request until now, and
        may release them."""
        held = self.held
        self.state = CHANGES[event].get(self.state, self.state)
        left = held and not self.held
        if left:
            self.mark, self.asked_s, self.late = NOT_ASKED, None, False
        return left
