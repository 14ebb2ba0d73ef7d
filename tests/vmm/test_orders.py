"""Orders to a thread that waits in a selector: carried out in turn, answered, never lost."""

from __future__ import annotations

import selectors
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from mirage.tiers.orders import Orders

pytestmark = pytest.mark.vmm

SOON_S = 30


@contextmanager
def obeying() -> Iterator[Orders]:
    """Orders, and a thread that carries them out until one raises `Over`."""
    orders = Orders()
    orders.open()

    def run() -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(orders, selectors.EVENT_READ)
            try:
                while True:
                    selector.select()
                    orders.obey()
            except Over:
                pass
            finally:
                selector.unregister(orders)
                orders.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield orders
    finally:
        orders.give(over)
        thread.join(SOON_S)
        assert not thread.is_alive()


class Over(Exception):
    pass


def over() -> None:
    raise Over


def test_orders_of_many_threads_are_done_in_one_each_once() -> None:
    done: list[tuple[int, int]] = []
    with obeying() as orders:

        def give(who: int) -> None:
            for number in range(200):
                orders.give(partial(done.append, (who, number))).result(SOON_S)

        threads = [threading.Thread(target=give, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_S)
    for who in range(4):
        assert [number for other, number in done if other == who] == list(range(200))


def test_who_ordered_what_cannot_be_done_hears_why_and_others_go_on() -> None:
    def refuse() -> None:
        raise ValueError("no")

    with obeying() as orders:
        with pytest.raises(ValueError, match="no"):
            orders.give(refuse).result(SOON_S)
        orders.give(lambda: None).result(SOON_S)


def test_nobody_waits_for_a_thread_that_has_ended_or_not_begun() -> None:
    orders = Orders()
    orders.give(over).result(0)
    orders.open()
    left = orders.give(over)
    assert not left.done()
    orders.close()
    left.result(0)
    orders.give(over).result(0)
    orders.close()


def test_an_order_that_its_giver_called_back_is_done_and_harms_nothing() -> None:
    done = []
    orders = Orders()
    orders.open()
    orders.give(lambda: done.append(1)).cancel()
    orders.give(lambda: done.append(2))
    orders.obey()
    orders.close()
    assert done == [1, 2]
