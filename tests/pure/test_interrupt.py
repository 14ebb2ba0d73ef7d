"""Ctrl-C that comes while processes start."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from mirage.processes.interrupt import interrupts_wait, signals_wait, terminate_like_interrupt

pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def _python_raises() -> None:
    """Let SIGINT raise KeyboardInterrupt in this process. A shell may have started the tests with
    SIGINT ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_it_waits_though_another_thread_takes_the_signal() -> None:
    over = threading.Event()
    taker = threading.Thread(target=over.wait)  # begun before the block: does not block SIGINT
    taker.start()
    started = False
    try:
        with pytest.raises(KeyboardInterrupt), interrupts_wait():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            started = True
    finally:
        over.set()
        taker.join()
    assert started, "whatever starts inside is whole"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_it_waits_with_no_other_thread(number: int) -> None:
    started = False
    with pytest.raises(KeyboardInterrupt), terminate_like_interrupt(), interrupts_wait():
        signal.raise_signal(number)
        started = True
    assert started


def test_without_one_nothing_is_left_changed() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_wait():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_an_error_inside_goes_on() -> None:
    with pytest.raises(ValueError, match="inside"), interrupts_wait():
        raise ValueError("inside")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_handler_waits_and_children_get_the_signal(number: signal.Signals) -> None:
    whole = False
    with pytest.raises(KeyboardInterrupt), terminate_like_interrupt(), signals_wait():
        os.kill(os.getpid(), number)
        time.sleep(0.05)
        assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        whole = True
    assert whole


def test_an_event_loop_hears_of_a_signal_once() -> None:
    """A server counts: a second signal would kill it at once."""

    async def run() -> int:
        heard: list[int] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, heard.append, 1)
        with signals_wait():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
        await asyncio.sleep(0.05)
        loop.remove_signal_handler(signal.SIGTERM)
        return len(heard)

    assert asyncio.run(run()) == 1


def test_a_signal_without_a_handler_ends_the_process_at_the_end() -> None:
    if not (child := os.fork()):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with signals_wait():
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_in_another_thread_nothing_waits_and_nothing_fails() -> None:
    handler = signal.getsignal(signal.SIGINT)
    seen = []

    def start() -> None:
        with signals_wait():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert seen == [handler]
