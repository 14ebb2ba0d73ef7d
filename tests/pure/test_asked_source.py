"""A source is asked once in a while, waited for while it is quick, and its last answer holds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import aiohttp
import pytest

from mirage.serve.router.asked_source import FRESH_S, AskedSource, renewed

pytestmark = pytest.mark.pure


class Asked:
    """Fake of what an `AskedSource` asks: it answers with the number of questions so far. It waits
    while the event `may` is not set, and raises `error` if that is set.
    """

    def __init__(self) -> None:
        self.now, self.count = 0.0, 0
        self.may = asyncio.Event()
        self.may.set()
        self.error: Exception | None = None
        self.source = AskedSource(self.answers, lambda: self.now)

    async def answers(self) -> int:
        self.count += 1
        await self.may.wait()
        if self.error is not None:
            raise self.error
        return self.count

    async def scraped(self, patience_s: float = 10.0) -> int | None:
        await renewed([self.source], patience_s)
        return self.source.answer


def run(scenario: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario

    asyncio.run(bounded())


def test_it_is_asked_no_more_often_than_answers_are_fresh() -> None:
    async def scenario() -> None:
        one = Asked()
        assert await asyncio.gather(*(one.scraped() for _ in range(20))) == [1] * 20
        assert await one.scraped() == 1
        one.now += FRESH_S
        assert await one.scraped() == 2 and one.count == 2

    run(scenario())


def test_one_that_is_late_is_not_waited_for_until_it_answers() -> None:
    async def scenario() -> None:
        one = Asked()
        assert await one.scraped() == 1
        one.may.clear()
        one.now += FRESH_S
        assert await one.scraped(patience_s=0.0) == 1 and one.source.late
        for _ in range(3):
            one.now += FRESH_S
            assert one.source.begin() is None, "nobody waits"
            assert await one.scraped(patience_s=1000.0) == 1
        assert one.count == 2, "the second question is still open"
        assert one.source.age_s == 4 * FRESH_S
        one.may.set()
        while one.source.late:
            await asyncio.sleep(0)
        assert (one.source.answer, one.source.age_s) == (2, 0.0)
        one.now += FRESH_S
        assert await one.scraped() == 3

    run(scenario())


@pytest.mark.parametrize("error", [OSError(), aiohttp.ClientError(), ValueError()])
def test_the_answer_of_one_that_fails_is_dropped(error: Exception) -> None:
    async def scenario() -> None:
        one = Asked()
        assert await one.scraped() == 1
        one.error = error
        one.now += FRESH_S
        assert await one.scraped() is None
        one.error = None
        one.now += FRESH_S
        assert await one.scraped() == 3

    run(scenario())


def test_an_answer_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.serve.router.asked_source.LIMIT_S", 0.01)

    async def scenario() -> None:
        one = Asked()
        assert await one.scraped() == 1
        one.may.clear()
        one.now += FRESH_S
        assert await one.scraped() is None
        one.may.set()
        one.now += FRESH_S
        assert await one.scraped() == 3

    run(scenario())


def test_it_can_be_closed_while_it_is_asked() -> None:
    async def scenario() -> None:
        one = Asked()
        one.may.clear()
        await one.scraped(patience_s=0.0)
        one.source.close()
        one.source.close()
        assert one.source.answer is None

    run(scenario())


def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    async def scenario() -> None:
        one = Asked()
        one.may.clear()
        first, second = (asyncio.create_task(one.scraped()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        one.may.set()
        assert await second == 1 and one.count == 1

    run(scenario())
