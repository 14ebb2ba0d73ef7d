"""Messages and file descriptors between processes, over real sockets."""

from __future__ import annotations

import asyncio
import os
import resource
import selectors
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.wire import HEADER, LONGEST, Broken, Channel, ChannelClosed, Decoder, encode, receive

pytestmark = pytest.mark.e2e


class Word(msgspec.Struct, frozen=True, array_like=True, tag=True):
    text: str


class Number(msgspec.Struct, frozen=True, array_like=True, tag=True):
    value: int
    data: bytes = b""


Both = Word | Number
FILES = Path("/proc/self/fd")
Line = Channel[Both]
messages = st.lists(
    st.one_of(st.builds(Word, st.text()), st.builds(Number, st.integers(0, 99), st.binary()))
)


def pair(**how: object) -> tuple[Line, Line]:
    ours, theirs = socket.socketpair()
    return Channel(ours, Both, most_descriptors=2), Channel(theirs, Both, **how)  # type: ignore[arg-type]


@pytest.fixture
def line() -> Iterator[tuple[Line, Line]]:
    a, b = pair(most_descriptors=2)
    with closing(a), closing(b):
        yield a, b


@given(messages, st.lists(st.integers(1, 40)))
def test_messages_come_whole_and_in_order_however_they_are_cut(
    said: list[Both], cuts: list[int]
) -> None:
    text = b"".join(map(encode, said))
    decoder: Decoder[Both] = Decoder(Both)
    heard = []
    for size in [*cuts, len(text)]:
        piece, text = text[:size], text[size:]
        decoder.feed(piece)
        while decoder.has_next:
            found = decoder.next()
            assert found is not None
            heard.append(found[0])
        assert decoder.next() is None
    assert heard == said


def test_descriptors_come_with_their_message(line: tuple[Line, Line]) -> None:
    here, there = line
    there.socket.setblocking(False)
    files = [os.memfd_create(f"{number}") for number in range(3)]
    for number, file in enumerate(files):
        os.write(file, b"%d" % number)
    here.say(Word("none"))
    here.say(Word("two"), Number(1, b"x" * 1000), descriptors=files[:2])
    here.say(Number(2), descriptors=files[2:])
    for file in files:
        os.close(file)
    while there.read():
        pass
    heard = []
    while (found := there.next()) is not None:
        message, descriptors = found
        heard.append((message, [os.pread(fd, 9, 0) for fd in descriptors]))
        for fd in descriptors:
            os.close(fd)
    assert heard == [
        (Word("none"), []),
        (Word("two"), [b"0", b"1"]),
        (Number(1, b"x" * 1000), []),
        (Number(2), [b"2"]),
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (HEADER.pack(LONGEST + 1, 0), "too large"),
        (HEADER.pack(1, 3) + b"\xc0", "3 descriptors"),
        (HEADER.pack(1, 1) + b"\xc0", "descriptors were lost"),
        (HEADER.pack(1, 0) + b"\xc0", "Expected"),
        (HEADER.pack(3, 0) + b"\x93ab", "Expected|malformed|truncated"),
    ],
)
def test_what_is_no_message_is_one_line(line: tuple[Line, Line], data: bytes, words: str) -> None:
    here, there = line
    here.socket.sendall(data)
    there.read()
    assert there.has_next
    with pytest.raises(Broken, match=words) as error:
        there.next()
    assert not isinstance(error.value, ChannelClosed)


def test_descriptors_that_nobody_expects_do_not_arrive() -> None:
    here, there = pair()
    before = open_files()
    with closing(here), closing(there):
        here.say(Word("a"), descriptors=[0, 1])
        there.read()
        assert open_files() == before
        with pytest.raises(Broken, match="2 descriptors is too large"):
            there.next()


def test_descriptors_that_nobody_took_are_closed(line: tuple[Line, Line]) -> None:
    here, there = line
    before = open_files()
    here.say(Word("a"), descriptors=[0, 1])
    there.read()
    assert open_files() == before + 2
    there.close()
    assert open_files() == before - 1, "the socket is closed too"


def test_a_process_without_descriptors_says_so(line: tuple[Line, Line]) -> None:
    here, there = line
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    here.say(Word("a"), descriptors=[0, 1])
    lowest = max(int(entry.name) for entry in FILES.iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    spare = []
    try:
        while True:
            try:
                spare.append(os.dup(0))
            except OSError:
                break
        with pytest.raises(Broken, match="can open no more files"):
            there.read()
            there.next()
        with pytest.raises(Broken, match="no descriptor can be sent"):
            here.say(Word("b"), descriptors=[0])
    finally:
        for fd in spare:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_does_not_read_is_waited_for_and_then_given_up() -> None:
    selector = selectors.DefaultSelector()
    ours, theirs = socket.socketpair()
    here: Line = Channel(ours, Both, most_unread=2**20, selector=selector)
    there: Line = Channel(theirs, Both)
    with selector, closing(here), closing(there):
        said = 0
        while not here.unsent:
            here.say(Number(said, b"x" * 10_000))
            said += 1
        events = selectors.EVENT_READ | selectors.EVENT_WRITE
        assert selector.get_key(here).events == events
        assert [there.wait()[0] for _ in range(said - 1)][-1] == Number(said - 2, b"x" * 10_000)
        here.flush()
        assert there.wait()[0] == Number(said - 1, b"x" * 10_000)
        assert selector.get_key(here).events == selectors.EVENT_READ
        with pytest.raises(Broken, match=r"it has not read \d+ bytes"):
            for _ in range(1000):
                here.say(Number(0, b"x" * 10_000))
        here.tell(Word("late"))
        with pytest.raises(ChannelClosed):
            while True:
                here.read()


def test_the_end_is_heard_after_what_was_said(line: tuple[Line, Line]) -> None:
    here, there = line
    here.say(Word("a"), Word("b"))
    here.close()
    assert list(there.until_end()) == [Word("a"), Word("b")]
    with pytest.raises(ChannelClosed, match="it has gone"):
        there.wait()
    with pytest.raises(ChannelClosed):
        for _ in range(3):
            there.say(Word("c"))


def test_a_wait_ends_with_the_timeout_of_its_socket(line: tuple[Line, Line]) -> None:
    line[0].socket.settimeout(0.01)
    with pytest.raises(Broken, match="timed out"):
        line[0].wait()


def test_a_stream_reads_the_same() -> None:
    async def heard(data: bytes) -> list[Both]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        found = []
        while (message := await receive(reader, decoder)) is not None:
            found.append(message)
        return found

    decoder: Decoder[Both] = Decoder(Both)
    both = [Word("a"), Number(7)]
    text = b"".join(map(encode, both))
    assert asyncio.run(heard(text)) == both
    assert asyncio.run(heard(text + text[:7])) == both, "who ends in the middle has ended"
    for strange in (HEADER.pack(LONGEST + 1, 0), HEADER.pack(1, 1), HEADER.pack(1, 0) + b"\xc0"):
        with pytest.raises(Broken):
            asyncio.run(heard(strange))


def open_files() -> int:
    return len(list(FILES.iterdir()))


def test_a_protocol_may_have_longer_messages(line: tuple[Line, Line]) -> None:
    data = encode(Number(1, b"x" * LONGEST))
    short: Decoder[Both] = Decoder(Both)
    long: Decoder[Both] = Decoder(Both, longest=2 * LONGEST)
    for decoder in (short, long):
        decoder.feed(data)
    with pytest.raises(Broken, match="too large"):
        short.next()
    assert long.next() == (Number(1, b"x" * LONGEST), [])


def test_messages_without_descriptors_go_over_tcp_as_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        ours = socket.create_connection(door.getsockname())
        theirs, _ = door.accept()
    here: Line = Channel(ours, Both)
    there: Line = Channel(theirs, Both, most_descriptors=1)
    with closing(here), closing(there):
        here.say(Word("a"), Number(2))
        assert [there.wait(), there.wait()] == [(Word("a"), []), (Number(2), [])]
        there.say(Word("b"))
        assert here.wait() == (Word("b"), [])
        here.say(Word("c"), descriptors=[2])
        with pytest.raises(Broken, match="descriptors were lost"):
            there.wait()
