"""Messages between the processes of one machine, over stream sockets, with file descriptors.

A message is a tagged `msgspec.Struct`, such as a `Message`. It goes as MessagePack behind a header:
the bytes that follow, and the descriptors that come with the first of them. `Channel` is one end of
a connection for threads and selectors; `receive` reads the same from an asyncio stream.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

HEADER = struct.Struct("!IB")
LONGEST = 2**20
"""Bytes of a message, unless a protocol says otherwise."""
PIECE = 2**16
"""Bytes that are read at a time."""
MOST_UNREAD = 2**22
"""Bytes that wait for the other end to read them."""

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message; it is written as a list that begins with the class's name."""


class Broken(Exception):
    """The other end has gone, or does not speak as agreed; the message says which."""


def encode(message: msgspec.Struct, descriptors: int = 0) -> bytes:
    """Header and body of a message that carries `descriptors` file descriptors."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body), descriptors) + body


class ChannelClosed(Broken):
    """The other end has gone."""


class Decoder(Generic[T]):
    """Messages out of bytes and descriptors as they come. `kinds`: a union of tagged structs."""

    def __init__(self, kinds: Any, most_descriptors: int = 0, longest: int = LONGEST) -> None:
        """`most_descriptors` that one message may bring, `longest` in bytes."""
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kinds)
        self._most, self.longest = most_descriptors, longest
        self._bytes = bytearray()
        self._descriptors: deque[int] = deque()

    def feed(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """The descriptors are the decoder's until `next` hands them on."""
        self._bytes += data
        self._descriptors += descriptors

    @property
    def has_next(self) -> bool:
        """True if `next` gives a message, or raises."""
        length = self._header()[0]
        return length > self.longest or 0 <= length <= len(self._bytes) - HEADER.size

    def next(self) -> tuple[T, list[int]] | None:
        """The next message with its descriptors, now the caller's; None if it is not whole.

        Raises `Broken`.
        """
        length, count = self._header()
        if length > self.longest or count > self._most:
            raise Broken(f"a message of {length} bytes and {count} descriptors is too large")
        if not self.has_next:
            return None
        if count > len(self._descriptors):
            raise Broken("descriptors were lost: this process can open no more files")
        end = HEADER.size + length
        body = bytes(self._bytes[HEADER.size : end])
        del self._bytes[:end]
        return self.body(body), [self._descriptors.popleft() for _ in range(count)]

    def body(self, body: bytes) -> T:
        """The message of a body. Raises `Broken`."""
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Broken(f"{error} in {body[:80]!r}") from None

    def close(self) -> None:
        """Close descriptors that the receiver did not take. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _header(self) -> tuple[int, int]:
        """Bytes and descriptors of the next message; (-1, 0) before they are known."""
        if len(self._bytes) < HEADER.size:
            return -1, 0
        length, count = HEADER.unpack_from(self._bytes)
        return length, count


class Channel(Generic[T]):
    """One end of a connection. Of two threads, one may say and one hear.

    On a socket that does not block, no call waits; what cannot be sent waits for `flush`.
    """

    def __init__(
        self,
        there: socket.socket,
        kinds: Any,
        *,
        most_descriptors: int = 0,
        most_unread: int = MOST_UNREAD,
        longest: int = LONGEST,
        selector: selectors.BaseSelector | None = None,
    ) -> None:
        """Takes over the socket. `kinds`: a union of the messages that come.

        A `selector` watches the channel, and has it as `data`: for reading, and for writing while
        something is unsent.
        """
        self.socket = there
        self._decoder: Decoder[T] = Decoder(kinds, most_descriptors, longest)
        self._most_descriptors, self._most_unread = most_descriptors, most_unread
        self._unsent: deque[tuple[bytearray, list[int]]] = deque()
        """Bytes, and the descriptors that go with the first of them."""
        self._selector = selector
        if selector is not None:
            there.setblocking(False)
            selector.register(there, selectors.EVENT_READ, self)

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait until the other end reads."""
        return sum(len(data) for data, _ in self._unsent)

    @property
    def has_next(self) -> bool:
        """True if `next` gives a message, or raises, without anything being read."""
        return self._decoder.has_next

    def say(self, *messages: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Send what can be sent now. `descriptors` go with the first message, and stay open here.

        Raises `Broken` if the other end has gone, or has left too much unread.
        """
        for message in messages:
            self._put(message, descriptors)
            descriptors = ()
        self.flush()
        if self.unsent > self._most_unread:
            raise Broken(f"it has not read {self.unsent} bytes")

    def tell(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Say a message for whoever reads the channel, and hears there that it has ended."""
        try:
            self.say(message, descriptors=descriptors)
        except Broken:
            self.shut()

    def flush(self) -> None:
        """Send what the other end has room for. Raises `Broken`."""
        try:
            while self._unsent:
                self._send_some()
        except BlockingIOError:
            pass
        except OSError as error:
            raise ChannelClosed(error.strerror or str(error)) from None
        self._watch()

    def read(self) -> bool:
        """Read once; False if nothing has come. Raises `Broken`."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(
                self.socket, PIECE, self._most_descriptors, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(error.strerror or str(error)) from None
        self._decoder.feed(data, descriptors)
        if flags & socket.MSG_CTRUNC and self._most_descriptors:
            raise Broken("descriptors were lost: this process can open no more files")
        if not data:
            raise ChannelClosed("it has gone")
        return True

    def next(self) -> tuple[T, list[int]] | None:
        """The next message that was read, with its descriptors, which are the caller's then."""
        return self._decoder.next()

    def hear(self) -> Iterator[T]:
        """All that has come, where no message brings descriptors. Raises `Broken`."""
        while self.read():
            while (heard := self.next()) is not None:
                yield heard[0]

    def wait(self) -> tuple[T, list[int]]:
        """The next message and its descriptors, as soon as it has come. Raises `Broken`.

        The socket blocks; if it has a timeout, each read may take that long.
        """
        while (heard := self.next()) is None:
            self.read()
        return heard

    def finish(self, patience_s: float) -> None:
        """Send what is left, as long as the other end reads on within `patience_s` each time."""
        with suppress(Broken):
            while self._unsent and select.select([], [self.socket], [], patience_s)[1]:
                self.flush()

    def comes(self, patience_s: float) -> bool:
        """True if there is something to read, or will be within `patience_s`; the end is, too."""
        if self.has_next:
            return True
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(patience_s * 1000))

    def until_end(self) -> Iterator[T]:
        """Each message as it comes, until the other end has gone. Raises `Broken`."""
        with suppress(ChannelClosed):
            while True:
                yield self.wait()[0]

    def shut(self) -> None:
        """Let both ends hear that the connection has ended."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and what it brought. Idempotent."""
        if self._selector is not None:
            self._selector.unregister(self.socket)
            self._selector = None
        self.socket.close()
        self._decoder.close()
        while self._unsent:
            _close(self._unsent.popleft()[1])

    def _put(self, message: msgspec.Struct, descriptors: Sequence[int]) -> None:
        data = encode(message, len(descriptors))
        if self._unsent and not descriptors:
            self._unsent[-1][0].extend(data)
            return
        own: list[int] = []
        self._unsent.append((bytearray(data), own))
        try:
            own.extend(map(os.dup, descriptors))
        except OSError as error:
            raise Broken(f"no descriptor can be sent: {error.strerror}") from None

    def _send_some(self) -> None:
        data, descriptors = self._unsent[0]
        if descriptors:
            sent = socket.send_fds(self.socket, [data], descriptors)
            _close(descriptors)
            descriptors.clear()
        else:
            sent = self.socket.send(data)
        del data[:sent]
        if not data:
            self._unsent.popleft()

    def _watch(self) -> None:
        if self._selector is None:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self.socket).events != events:
            self._selector.modify(self.socket, events, self)


async def receive(reader: asyncio.StreamReader, decoder: Decoder[T]) -> T | None:
    """The next message of a stream, None at its end, also in the middle of one. Raises `Broken`.

    `decoder` says which messages come; it keeps nothing.
    """
    try:
        length, count = HEADER.unpack(await reader.readexactly(HEADER.size))
        if length > decoder.longest or count:
            raise Broken(f"a message of {length} bytes and {count} descriptors is too large")
        return decoder.body(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return None


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
