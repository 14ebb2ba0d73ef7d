"""Draining: a tenant that loses its turn may first finish the requests that it has begun.

After a drain no KV of suspended requests takes the memory of the next model's layers, and tokens
come evenly. But batches become small meanwhile, and other tenants wait. So by default a turn drains
only where stopping would cost more: where the next model would have to stream more layers than hide
in every step of its turn.
"""

from __future__ import annotations

from typing import Literal


class Draining:
    """Rule that decides whether a turn drains. `drain`: always (True), never (False), or "auto": by
    cost, for `turn_s` seconds at most."""

    def __init__(self, drain: bool | Literal["auto"], turn_s: float) -> None:
        self._drain = drain
        self._turn_s = turn_s
        self.name: str | None = None
        """Tenant that drains because stopping would cost more; None if there is none."""
        self.until: float | None = None
        """Time in seconds at which that tenant has to stop; None if there is none."""

    def begins(self, name: str, now: float, *, costly: bool) -> bool:
        """True if the tenant `name`, whose turn is over, drains; `now` is the time in seconds.
        `costly` is True if stopping now would cost more than draining. A tenant that drains for
        this reason is stored in `self.name`, and the time at which it has to stop in
        `self.until`."""
        if self._drain != "auto":
            return self._drain
        if costly:
            self.name, self.until = name, now + self._turn_s
        return costly

    def ends(self, now: float, *, costly: bool) -> bool:
        """True if the tenant that drains because of the cost shall stop now: its time is over, or
        stopping now would no longer cost more than draining (`costly` is False). Its drain is over
        then, so that a second call returns False."""
        if self.until is None or (costly and now < self.until):
            return False
        self.over()
        return True

    def over(self) -> None:
        """Forget the draining tenant (`name` and `until`): it has finished its requests, is told to
        stop, or its engine is gone."""
        self.name = self.until = None
