"""Requests that a controller reads from a device's server, look by look."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mirage.serve.machine.calls import DeviceAway
from mirage.serve.machine.served_device import DeviceStanding
from mirage.serve.machine.watching import WatchedDevice
from mirage.serve.whatif.forms import PastTold
from mirage.serve.whatif.past import EndedRequest, PastRequests
from mirage.serve.whatif.route import encoded

pytestmark = pytest.mark.pure

PAGE = 4


class Calls:
    """Calls to a device's server that keeps `past`; the pages after the first `answers` fail."""

    def __init__(self, past: PastRequests) -> None:
        self.past_requests, self.answers = past, 1000

    async def tenants(self) -> Any:
        server = SimpleNamespace(pid=1, routers=[], own_router=True)
        return SimpleNamespace(server=server, tenants=[])

    async def past(self, since: int) -> PastTold:
        if not self.answers:
            raise DeviceAway("it is away")
        self.answers -= 1
        page = self.past_requests.page(since, PAGE, 0.0)
        return msgspec.json.decode(encoded(page, 0.0), type=PastTold)


def adds(past: PastRequests, tenant: str, *numbers: int, now: float = 0.0) -> None:
    past.add(tenant, b"".join(EndedRequest(0.0, n, 1, 0.5, 1.5).row for n in numbers), 0, now)


def device(calls: Calls) -> WatchedDevice:
    served: Any = SimpleNamespace(standing=DeviceStanding.THERE, calls=calls, tenants=[])
    return WatchedDevice(served, 0.0)


def look(watched: WatchedDevice) -> list[int]:
    """Numbers of the requests that a look finds."""
    return [one.prompt for one in asyncio.run(watched.look(1.0))]


def test_each_request_is_found_once_though_a_tenant_with_unread_ones_is_removed() -> None:
    past = PastRequests()
    watched = device(Calls(past))
    adds(past, "a", *range(6))
    assert look(watched) == list(range(6))
    adds(past, "b", *range(10, 15))
    adds(past, "a", 6)
    past.forget("b")
    assert look(watched) == [6]
    adds(past, "a", 7)
    assert look(watched) == [7] and look(watched) == []


def test_a_controller_that_comes_after_an_hour_finds_each_once() -> None:
    past = PastRequests(most=6)
    adds(past, "a", *range(5))
    adds(past, "a", *range(5, 10))
    watched = device(Calls(past))
    assert look(watched) == list(range(5, 10)) and look(watched) == []
    adds(past, "a", 10)
    assert look(watched) == [10] and look(watched) == []


def test_pages_that_were_read_before_the_device_went_away_count() -> None:
    past = PastRequests()
    calls = Calls(past)
    watched = device(calls)
    adds(past, "a", *range(6))
    calls.answers = 1
    assert look(watched) == list(range(PAGE)) and watched.away_s > 0
    calls.answers = 2
    assert look(watched) == [4, 5] and not watched.away_s
