"""States of one tenant, and the only transitions between them. Pure: a table.

Two facts describe a tenant: the state of its process (`LifeState`), and the place of its weights
(`WeightsPlace`). Three of the events are orders that were sent. The others are reported: an order
was carried out, or the process ended by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class LifeState(StrEnum):
    """State of a tenant's process."""

    STARTING = "starting"
    """The process starts; its weights are loaded to the device, unless it starts hollow."""
    READY = "ready"
    SLEEPING = "sleeping"
    """The process lives, and holds on the device only the memory that it cannot give."""
    WAKING = "waking"
    """The process lives, and its weights are loaded to the device."""
    DRAINING = "draining"
    """The process finishes running requests and begins none; then it sleeps or stops."""
    STOPPED = "stopped"
    """There is no process, and none is wanted."""
    DOWN = "down"
    """The process ended by itself, and is to be started again."""
    FAILED = "failed"
    """The process ended too often, or never started: no new start for a long time."""


class LifeEvent(StrEnum):
    """Orders to an engine, and events that are reported of it."""

    START = "start"
    WAKE = "wake"
    DRAIN = "drain"
    """Beginning of every sleep and stop, also of a tenant without running requests."""
    STARTED = "started"
    WOKE = "woke"
    SLEPT = "slept"
    ENDED = "ended"
    """The process has ended as it was told; or it is not to be started again."""
    CRASHED = "crashed"
    """The process has ended by itself."""
    GIVEN_UP = "given up"
    """The process will not be started again for a long time."""


class WeightsPlace(StrEnum):
    """Fastest place that has all weights of a tenant."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class UnexpectedEventError(RuntimeError):
    """Error: the present state does not allow the event, which came too late or breaks the
    protocol."""


_S, _E = LifeState, LifeEvent
TRANSITIONS: Mapping[LifeState, Mapping[LifeEvent, LifeState]] = {
    _S.STARTING: {
        _E.STARTED: _S.READY,
        # It started without the memory for its layers.
        _E.SLEPT: _S.SLEEPING,
        _E.DRAIN: _S.DRAINING,
        _E.CRASHED: _S.DOWN,
        _E.GIVEN_UP: _S.FAILED,
    },
    _S.READY: {_E.DRAIN: _S.DRAINING, _E.CRASHED: _S.DOWN},
    _S.SLEEPING: {_E.WAKE: _S.WAKING, _E.DRAIN: _S.DRAINING, _E.CRASHED: _S.DOWN},
    _S.WAKING: {_E.WOKE: _S.READY, _E.DRAIN: _S.DRAINING, _E.CRASHED: _S.DOWN},
    _S.DRAINING: {
        _E.SLEPT: _S.SLEEPING,
        _E.ENDED: _S.STOPPED,
        _E.CRASHED: _S.DOWN,
        # The engine reported this before it heard of the drain.
        _E.STARTED: _S.DRAINING,
        _E.WOKE: _S.DRAINING,
    },
    _S.STOPPED: {_E.START: _S.STARTING},
    _S.DOWN: {_E.START: _S.STARTING, _E.GIVEN_UP: _S.FAILED, _E.ENDED: _S.STOPPED},
    _S.FAILED: {_E.START: _S.STARTING, _E.ENDED: _S.STOPPED},
}
"""The state that follows, by the state before and the event."""
ALIVE = frozenset({_S.STARTING, _S.READY, _S.SLEEPING, _S.WAKING, _S.DRAINING})
"""States in which there is a process, which holds memory of the device."""
COMING = frozenset({_S.STARTING, _S.WAKING})
GONE = frozenset(_S) - ALIVE
BROKEN = frozenset({_S.DOWN, _S.FAILED})
"""States after an end of the process that was not ordered."""
_WITHOUT_OWN = GONE | {_S.STARTING}
"""States in which no process has the weights."""


class Life(NamedTuple):
    """State of a tenant and place of its weights; with `keeps` the weights stay in host memory
    after its process."""

    state: LifeState = LifeState.STOPPED
    place: WeightsPlace = WeightsPlace.DISK
    keeps: bool = True

    def after(self, event: LifeEvent) -> Life:
        """Return the state after an event. Raise `UnexpectedEventError` for an event that the table
        does not have."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            known = ", ".join(TRANSITIONS[self.state])
            raise UnexpectedEventError(
                f"{event.value!r} of a tenant that is {self.state.value}: it may be {known}"
            )
        return self._replace(state=following, place=self._place(event))

    def kept(self, *, kept: bool) -> Life:
        """Return the state with weights kept in host memory, process or not (`kept`), or no longer
        kept."""
        place = self.place
        if kept and place is WeightsPlace.DISK:
            place = WeightsPlace.HOST
        elif not kept and place is WeightsPlace.HOST and self.state in _WITHOUT_OWN:
            place = WeightsPlace.DISK
        return self._replace(keeps=kept, place=place)

    def _place(self, event: LifeEvent) -> WeightsPlace:
        if event in (LifeEvent.STARTED, LifeEvent.WOKE):
            return WeightsPlace.DEVICE
        if event is LifeEvent.SLEPT:
            return WeightsPlace.HOST
        if event in (LifeEvent.ENDED, LifeEvent.CRASHED, LifeEvent.GIVEN_UP):
            return self._left()
        return self.place

    def _left(self) -> WeightsPlace:
        """Return the place of the weights once the process is gone; weights on disk stay there."""
        on_disk = self.place is WeightsPlace.DISK or not self.keeps
        return WeightsPlace.DISK if on_disk else WeightsPlace.HOST
