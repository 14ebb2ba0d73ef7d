"""A server whose standard error is not read is not stopped by that."""

import fcntl
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised import serving, write_config

from mirage.processes.unread import MOST_CHARACTERS, Unread, unread_stderr

pytestmark = pytest.mark.e2e


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_what_nobody_reads_is_kept_up_to_a_bound_and_what_is_lost_is_counted(
    pipe: tuple[int, int],
) -> None:
    stream = Unread(pipe[1])
    line = "x" * 999 + "\n"
    count = 5 * MOST_CHARACTERS // 1000
    for number in range(count):
        stream.write(f"{number:05}{line}")
    with os.fdopen(os.dup(pipe[0])) as reader:
        numbers, lost = [], 0
        while len(numbers) + lost < count:
            told = reader.readline()
            if told.startswith("mirage: "):
                lost += int(told.split()[1])
            else:
                numbers.append(int(told[:5]))
    assert numbers == sorted(numbers) and numbers[0] == 0
    assert lost > MOST_CHARACTERS // 1000
    stream.end()


def test_a_reader_that_has_gone_harms_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = Unread(writing)
    stream.write("one\n")
    stream.write("two\n")
    stream.end()
    os.close(writing)


def test_all_is_written_before_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    try:
        with unread_stderr():
            print("printed", file=sys.stderr)
            logging.getLogger("mirage.test").warning("logged")
            assert sys.stderr is not before
        assert sys.stderr is before and handler.stream is before
    finally:
        logging.getLogger().removeHandler(handler)
    assert capfd.readouterr().err == "printed\nlogged\n"


def test_a_server_serves_and_ends_beside_a_stopped_terminal(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    """The pipe for standard error is full from the beginning. The server answers requests, and ends
    on SIGTERM.
    """
    os.set_blocking(pipe[1], False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(pipe[1], bytes(fcntl.fcntl(pipe[1], fcntl.F_GETPIPE_SZ)))
    os.set_blocking(pipe[1], True)
    with serving(write_config(tmp_path, "a"), stderr=pipe[1]) as served:
        body = {"model": "a", "prompt": "pids"}
        assert served.request("POST", "/v1/completions", body)[0] == 200
        assert served.end(signal.SIGTERM)[0] == 0
