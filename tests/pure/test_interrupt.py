"""Ctrl-C that comes while processes start."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from mirage.processes.interrupt import interrupts_wait, terminate_like_interrupt

pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def _python_raises() -> None:
    """A shell may have started the tests with SIGINT ignored."""
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
