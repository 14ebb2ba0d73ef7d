"""Messages reach a busy engine between its calls and an idle one at once; none is lost."""

from __future__ import annotations

import threading

import pytest

from mirage.engine.mailbox import Mailbox
from mirage.protocol import Refusal

pytestmark = pytest.mark.pure


def test_an_idle_engine_is_acted_upon_by_the_poster() -> None:
    mailbox, seen = Mailbox(), []
    mailbox.read_by(lambda message: seen.append((message.revision, threading.current_thread())))
    mailbox.post(Refusal(1))
    assert seen == [(1, threading.current_thread())]


def test_a_busy_engine_handles_messages_after_its_call() -> None:
    mailbox, seen = Mailbox(), []
    mailbox.read_by(lambda message: seen.append(message.revision))
    with mailbox.hold():
        poster = threading.Thread(target=mailbox.post, args=(Refusal(1),))
        poster.start()
        poster.join()
        assert seen == []
    assert seen == [1]


def test_who_holds_the_engine_can_see_that_it_is_wanted() -> None:
    mailbox, held = Mailbox(), threading.Event()

    def call() -> None:
        with mailbox.hold():
            held.set()

    with mailbox.hold():
        assert not mailbox.is_wanted
        caller = threading.Thread(target=call)
        caller.start()
        while not mailbox.is_wanted:
            pass
        assert not held.is_set()
    caller.join()
    assert held.is_set() and not mailbox.is_wanted


def test_a_waiting_engine_is_woken() -> None:
    mailbox, seen = Mailbox(), []
    mailbox.read_by(lambda message: seen.append(message.revision))
    entered = threading.Event()

    def post() -> None:
        entered.wait()
        mailbox.post(Refusal(1))

    poster = threading.Thread(target=post)
    poster.start()
    with mailbox.hold():
        entered.set()
        while not seen:
            mailbox.wait(5)
    poster.join()
    assert seen == [1]


def test_a_message_that_came_while_it_was_busy_does_not_make_it_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mailbox, seen = Mailbox(), []
    mailbox.read_by(lambda message: seen.append(message.revision))
    with mailbox.hold():
        poster = threading.Thread(target=mailbox.post, args=(Refusal(1),))
        poster.start()
        poster.join()
        monkeypatch.setattr(mailbox._engine, "wait", lambda seconds: pytest.fail("it slept"))
        mailbox.wait(1)
        assert seen == [1]


def test_no_message_is_lost_or_reordered_between_two_busy_threads() -> None:
    mailbox, seen = Mailbox(), []
    inside = threading.Lock()

    def handle(message: Refusal) -> None:
        assert inside.acquire(blocking=False), "two threads handled at once"
        seen.append(message.revision)
        inside.release()

    mailbox.read_by(handle)
    count = 3000
    poster = threading.Thread(target=lambda: [mailbox.post(Refusal(i)) for i in range(count)])
    poster.start()
    while poster.is_alive():
        with mailbox.hold():
            assert inside.acquire(blocking=False)
            inside.release()
    poster.join()
    assert seen == list(range(count))


def test_a_mailbox_has_one_reader() -> None:
    mailbox, seen = Mailbox(), []
    mailbox.read_by(seen.append)
    with pytest.raises(ValueError, match="has a reader already"):
        mailbox.read_by(print)
    with pytest.raises(AttributeError):
        mailbox.handle = print  # type: ignore[attr-defined]
    mailbox.post(Refusal(1))
    assert seen == [Refusal(1)]
