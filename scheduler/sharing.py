"""Rules of sharing: all tenants step at once (spatial), or one at a time in turns (temporal)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable


class SharingError(RuntimeError):
    """Error: under temporal sharing two tenants could step at the same time, or the work of a
    tenant that was never added is noted."""


class Sharing(ABC):
    """Rule that says which tenants may step. Events go in with their time in seconds; `decide`
    returns the tenants.

    The caller tells a tenant that enters the decided set that it has the turn, and revokes the turn
    of one that leaves the set. A second call of `decide` with the same time and no event in between
    returns the same set. No method looks at a clock.
    """

    leaving: str | None = None
    """Tenant whose turn was revoked and that has not yet confirmed that it stopped; None if there
    is none."""

    @abstractmethod
    def enters(self, name: str) -> None:
        """Add a tenant at the end of the order; nothing changes if it is known."""

    @abstractmethod
    def leaves(self, name: str) -> None:
        """Remove a tenant from the order. The caller has called `lost` for it before."""

    @abstractmethod
    def has_work(self, name: str, work: bool, now: float) -> None:
        """Note at time `now` that a tenant has requests running or waiting (`work`), or has none.
        Under temporal sharing, raise `SharingError` for a tenant that was never added."""

    @abstractmethod
    def holds(self, name: str, holding: bool, now: float) -> None:
        """Note from a tenant's report whether it may be stepping (`holding`). Every report says it.

        A tenant that was given the turn says True once it knows; a tenant whose turn was revoked
        says False once it has stopped. A report that was sent before either message arrived may
        still say the opposite, and changes nothing.
        """

    @abstractmethod
    def lost(self, name: str, now: float) -> None:
        """Note that a tenant's process is dead: it has no work and does not step."""

    @abstractmethod
    def decide(self, now: float) -> frozenset[str]:
        """Return the tenants that have the turn from `now` on; under spatial sharing all tenants.

        Under temporal sharing a call may end a turn and begin the next one. The set is empty while
        a tenant is `leaving`, which may still step.
        """

    @abstractmethod
    def prolongs(self, seconds: float) -> None:
        """Add `seconds` to the length of the turn that `decide` has just begun; nothing happens
        under spatial sharing."""

    @abstractmethod
    def next_deadline(self) -> float | None:
        """Return the time in seconds at which `decide` changes its answer without another event;
        None for never."""

    @abstractmethod
    def upcoming(self) -> str | None:
        """Return the tenant that gets the next turn, once the present holder has stopped: the
        holder itself if no other tenant has work. None if no tenant has work, and always under
        spatial sharing."""


class Spatial(Sharing):
    """Spatial sharing: all tenants step at the same time."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def enters(self, name: str) -> None:
        self._names |= {name}

    def leaves(self, name: str) -> None:
        self._names -= {name}

    def has_work(self, name: str, work: bool, now: float) -> None:
        pass

    def holds(self, name: str, holding: bool, now: float) -> None:
        pass

    def lost(self, name: str, now: float) -> None:
        pass

    def decide(self, now: float) -> frozenset[str]:
        return self._names

    def prolongs(self, seconds: float) -> None:
        pass

    def next_deadline(self) -> float | None:
        return None

    def upcoming(self) -> str | None:
        return None


class Temporal(Sharing):
    """Round robin among tenants with work; at most one tenant steps at a time.

    A turn lasts `turn_s` seconds, or longer if it is prolonged, and goes on while no other tenant
    has work. It ends early when its holder runs out of work and another tenant has some. A holder
    whose turn was revoked is `leaving`: it may still step until it reports that it has stopped, and
    no other tenant gets the turn before. The holder decides when it stops: after the step in
    flight, or, if it drains, when its running requests have finished.

    A turn is revoked only after its holder has confirmed it. Otherwise a report that was sent
    before the turn, and says that the turn is not held, could be taken for the answer to the
    revocation.
    """

    def __init__(self, names: Iterable[str], turn_s: float) -> None:
        self.holder: str | None = None
        self._ring = list(names)
        self._turn_s = turn_s
        self._work = dict.fromkeys(self._ring, False)
        self._last = self._ring[-1]
        self._ends = 0.0
        self._confirmed = False

    def enters(self, name: str) -> None:
        if name not in self._work:
            self._ring.append(name)
            self._work[name] = False

    def leaves(self, name: str) -> None:
        if name == self._last:  # the tenant after it is next all the same
            self._last = self._ring[self._ring.index(name) - 1]
        self._ring.remove(name)
        del self._work[name]

    def has_work(self, name: str, work: bool, now: float) -> None:
        if name not in self._work:
            raise SharingError(f"no tenant {name!r} takes turns: known are {self._ring}")
        self._work[name] = work

    def holds(self, name: str, holding: bool, now: float) -> None:
        if holding and name == self.holder:
            self._confirmed = True
        elif not holding and name == self.leaving:
            self.leaving = None

    def lost(self, name: str, now: float) -> None:
        self.has_work(name, False, now)
        self.holds(name, False, now)
        if name == self.holder:
            self.holder = None

    def decide(self, now: float) -> frozenset[str]:
        if self._is_over(now):
            self.holder, self.leaving = None, self.holder
        if self.holder is None and self.leaving is None:
            self._begin(now)
        return frozenset() if self.holder is None else frozenset({self.holder})

    def prolongs(self, seconds: float) -> None:
        self._ends += seconds

    def next_deadline(self) -> float | None:
        return self._ends if self._confirmed and self._others_wait() else None

    def upcoming(self) -> str | None:
        start = self._ring.index(self._last) + 1
        return next((n for n in self._ring[start:] + self._ring[:start] if self._work[n]), None)

    def check(self) -> None:
        """Raise `SharingError` if two tenants could be stepping."""
        if self.holder is not None and self.leaving is not None:
            raise SharingError(f"{self.holder!r} got the turn before {self.leaving!r} yielded it")

    def _others_wait(self) -> bool:
        return self.holder is not None and any(
            work for name, work in self._work.items() if name != self.holder
        )

    def _is_over(self, now: float) -> bool:
        if self.holder is None or not self._confirmed or not self._others_wait():
            return False
        return not self._work[self.holder] or now >= self._ends

    def _begin(self, now: float) -> None:
        self.holder = self.upcoming()
        if self.holder is not None:
            self._last, self._confirmed = self.holder, False
            self._ends = now + self._turn_s


def make_sharing(names: Iterable[str], turn_s: float | None) -> Sharing:
    """Return the rule for `names`: turns of `turn_s` seconds in this order, or spatial sharing if
    `turn_s` is None."""
    return Spatial(names) if turn_s is None else Temporal(names, turn_s)
