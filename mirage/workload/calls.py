"""Calls of a replay, generated at each iteration instead of being held in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from mirage.workload.dealing import TenantRequest


class Calls(Collection[TenantRequest]):
    """Calls that are generated from a trace and a seed each time they are iterated."""

    def __init__(self, make: Callable[[], Iterator[TenantRequest]]) -> None:
        """`make` returns a new iterator of the calls. One is exhausted here, so that errors show
        before the calls are used.
        """
        self._make = make
        self._length = self.clipped = 0
        names: dict[str, None] = {}
        for call in make():
            self._length += 1
            self.clipped += call.clipped
            names.setdefault(call.tenant)
        self.tenants = list(names)

    def __iter__(self) -> Iterator[TenantRequest]:
        return self._make()

    def __len__(self) -> int:
        return self._length

    def __contains__(self, call: object) -> bool:
        return any(call == each for each in self)


def tenants(calls: Collection[TenantRequest]) -> list[str]:
    """Tenants that receive any call, in the order of their first calls."""
    if isinstance(calls, Calls):
        return calls.tenants
    return list(dict.fromkeys(call.tenant for call in calls))


def clipped(calls: Collection[TenantRequest]) -> int:
    """Number of calls whose lengths were cut to their tenant's `max_model_len`."""
    return calls.clipped if isinstance(calls, Calls) else sum(c.clipped for c in calls)
