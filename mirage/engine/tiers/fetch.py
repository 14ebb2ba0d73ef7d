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

From DONE it can be SOUGHT again, if it lost its blocks before it started. A request that has
FINISHED is GONE; while its load is under way it is ABANDONED before. The pool keeps blocks for a
request from when they were sought to when it is admitted without a load, or its load has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto


class FetchState(Enum):
    """State of a request's fetch."""

    IDLE = auto()
    """Nothing is asked of the pool: it is new, runs, or was preempted."""
    SEEKING = auto()
    """The pool was asked for its blocks."""
    WAITING = auto()
    """The scheduler reached it, and it waits for what the pool says or brings up."""
    LOADING = auto()
    """It has memory for its blocks, and they are copied there."""
    FAILING = auto()
    """LOADING, and it is known that a copy failed."""
    DONE = auto()
    """Its blocks arrived, and it has not started since."""
    COMPUTE = auto()
    """Its load failed. It computes, and the pool is not asked for it again."""
    ABANDONED = auto()
    """It is over, and its load is not."""
    GONE = auto()
    """Nothing is remembered of it."""


class FetchEvent(Enum):
    """Event in a request's life."""

    SOUGHT = auto()
    """The pool is asked for its blocks, or for more of them."""
    REACHED = auto()
    """The scheduler considers it."""
    DELAYED = auto()
    """It is worth to wait for a block."""
    LOADS = auto()
    """It has memory for what it loads."""
    ADMITTED = auto()
    """It has memory, and loads nothing."""
    FAILED = auto()
    """A copy of its load failed."""
    ENDED = auto()
    """Its load has ended, well or not."""
    STARTED = auto()
    """Its first step after that is scheduled."""
    FINISHED = auto()
    """It has ended, or was aborted."""


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
"""Transitions by event, from a state to the next. A state that is not named stays."""

ASKS = frozenset({_S.SEEKING, _S.WAITING, _S.LOADING})
"""A block that the scheduler wants is looked up in the pool; in the others it is computed."""
UNDER_WAY = frozenset({_S.LOADING, _S.FAILING, _S.ABANDONED})
"""A load is."""
HELD = frozenset({_S.SEEKING, _S.WAITING}) | UNDER_WAY
"""The pool keeps blocks for it."""
CLOSED = frozenset({_S.COMPUTE, _S.ABANDONED, _S.GONE})
"""The pool is not asked any more."""
NOT_ASKED = -1
"""Below every mark of `Recent`."""


@dataclass(slots=True)
class Fetch:
    """One request, from when it enters the queue until nothing is remembered of it."""

    state: FetchState = FetchState.IDLE
    mark: int = NOT_ASKED
    """Number of `Recent` when the pool was asked."""
    asked_s: float | None = None
    """Time when it first had to wait for the pool, since that was asked."""
    late: bool = False
    """It stopped to wait for the pool, since that was asked."""
    put_off_s: float | None = None
    """Since when it waits for copies that others began, until it is admitted."""
    tokens: int = 0
    """Tokens that it loads, or loaded last."""

    @property
    def held(self) -> bool:
        """True if the pool keeps blocks for it."""
        return self.state in HELD

    @property
    def waits_itself(self) -> bool:
        """True if it waits for its own blocks, and not for what others began."""
        return self.state is FetchState.WAITING or self.state in UNDER_WAY

    def on(self, event: FetchEvent) -> bool:
        """Take what happened; True if the pool need keep its blocks no more."""
        held = self.held
        self.state = CHANGES[event].get(self.state, self.state)
        left = held and not self.held
        if left:
            self.mark, self.asked_s, self.late = NOT_ASKED, None, False
        return left
