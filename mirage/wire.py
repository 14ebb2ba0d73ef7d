"""Messages between the processes of one machine, over stream sockets, with file descriptors.

A message is a tagged `msgspec.Struct`, such as a `Message`. It is sent as MessagePack behind a
header: the number of bytes that follow, and the number of descriptors that come with the first of
them. `Channel` is one end of a connection for threads and selectors; `receive` reads the same
format from an asyncio stream.
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
"""Most bytes of a message, unless a protocol sets another limit."""
PIECE = 2**16
"""Bytes that are read at a time."""
MOST_UNREAD = 2**22
"""Most bytes that may wait for the other end to read them."""

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message; it is written as a list that begins with the class's name."""


class Broken(Exception):
    """Error: the other end has gone, or sent data that is not of the protocol; it says which."""


def encode(message: msgspec.Struct, descriptors: int = 0) -> bytes:
    """Header and body of a message that carries `descriptors` file descriptors."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body), descriptors) + body


class ChannelClosed(Broken):
    """Error: the other end has gone."""


class Decoder(Generic[T]):
    """Splitter of received bytes and descriptors into messages. `kinds` is a union of tagged
    structs."""

    def __init__(self, kinds: Any, most_descriptors: int = 0, longest: int = LONGEST) -> None:
        """`most_descriptors` is the limit for one message, `longest` its limit in bytes."""
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kinds)
        self._most, self.longest = most_descriptors, longest
        self._bytes = bytearray()
        self._descriptors: deque[int] = deque()

    def feed(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Add received bytes and descriptors. The decoder owns the descriptors until `next` returns
        them.
        """
        self._bytes += data
        self._descriptors += descriptors

    @property
    def has_next(self) -> bool:
        """True if a whole message has come, or the beginning of one that is too long: then `next`
        returns or raises.
        """
        length = self._header()[0]
        return length > self.longest or 0 <= length <= len(self._bytes) - HEADER.size

    def next(self) -> tuple[T, list[int]] | None:
        """Return the next message with its descriptors, which the caller then owns; None if the
        message has not come in whole.

        Raises `Broken` for a message that is too large, not of the protocol, or without its
        descriptors.
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
        """Decode the body of a message. Raises `Broken` if it is no message of the union."""
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Broken(f"{error} in {body[:80]!r}") from None

    def close(self) -> None:
        """Close the descriptors that were not taken with a message. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _header(self) -> tuple[int, int]:
        """Length in bytes and number of descriptors of the next message; (-1, 0) before its header
        is there.
        """
        if len(self._bytes) < HEADER.size:
            return -1, 0
        length, count = HEADER.unpack_from(self._bytes)
        return length, count


class Channel(Generic[T]):
    """One end of a connection. One thread may send while another receives.

    On a non-blocking socket `say`, `tell`, `flush`, `read` and `hear` never wait; data that cannot
    be sent stays for the next `flush`. `finish` and `comes` wait for a limited time.
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
        """The channel owns the socket from now on. `kinds` is a union of the messages that are
        received.

        A `selector` watches the channel, which is the `data` of its key: always for reading, and
        for writing while something is unsent.
        """
        self.socket = there
        self._decoder: Decoder[T] = Decoder(kinds, most_descriptors, longest)
        self._most_descriptors, self._most_unread = most_descriptors, most_unread
        self._unsent: deque[tuple[bytearray, list[int]]] = deque()
        """Bytes to send, each with the descriptors that go with the first of them."""
        self._selector = selector
        if selector is not None:
            there.setblocking(False)
            selector.register(there, selectors.EVENT_READ, self)

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return sum(len(data) for data, _ in self._unsent)

    @property
    def has_next(self) -> bool:
        """True if a whole message was read, or the beginning of one that is too long: then `next`
        returns or raises.
        """
        return self._decoder.has_next

    def say(self, *messages: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Send messages; on a non-blocking socket, as far as the other end has room for them.
        `descriptors` go with the first message, and also stay open here.

        Raises `Broken` if the other end has gone, or has left more than `most_unread` bytes unread.
        """
        for message in messages:
            self._put(message, descriptors)
            descriptors = ()
        self.flush()
        if self.unsent > self._most_unread:
            raise Broken(f"it has not read {self.unsent} bytes")

    def tell(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message, with open file `descriptors`. If the connection is broken, shut it down,
        so that its reader sees the end."""
        try:
            self.say(message, descriptors=descriptors)
        except Broken:
            self.shut()

    def flush(self) -> None:
        """Send what is unsent; on a non-blocking socket, as much as the other end has room for.

        Raises `Broken` if the other end has gone.
        """
        try:
            while self._unsent:
                self._send_some()
        except BlockingIOError:
            pass
        except OSError as error:
            raise ChannelClosed(error.strerror or str(error)) from None
        self._watch()

    def read(self) -> bool:
        """Read once from the socket; False if nothing has come. Raises `ChannelClosed` if the other
        end has gone, and `Broken` if descriptors were lost.
        """
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
        """The next message that was read, with its descriptors, which the caller now owns; None if
        there is none. Raises `Broken` for one that is too large or not of the protocol.
        """
        return self._decoder.next()

    def hear(self) -> Iterator[T]:
        """All messages that have come, on a channel whose messages bring no descriptors. Raises
        `Broken` as `read` and `next` do.
        """
        while self.read():
            while (heard := self.next()) is not None:
                yield heard[0]

    def wait(self) -> tuple[T, list[int]]:
        """Wait for the next message, and return it with its descriptors. Raises `Broken` as `read`
        and `next` do.

        The socket must block; if it has a timeout, each read may take that long.
        """
        while (heard := self.next()) is None:
            self.read()
        return heard

    def finish(self, patience_s: float) -> None:
        """Send the rest; stop when the other end reads nothing for `patience_s` seconds."""
        with suppress(Broken):
            while self._unsent and select.select([], [self.socket], [], patience_s)[1]:
                self.flush()

    def comes(self, patience_s: float) -> bool:
        """True if something can be read within `patience_s` seconds; the end of the connection
        counts.
        """
        if self.has_next:
            return True
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(patience_s * 1000))

    def until_end(self) -> Iterator[T]:
        """Each message as it comes, until the other end has gone. Raises `Broken` for other
        errors.
        """
        with suppress(ChannelClosed):
            while True:
                yield self.wait()[0]

    def shut(self) -> None:
        """Shut the connection down, so that both ends read its end."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and all descriptors that were received or unsent. Idempotent."""
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
    """The next message of a stream; None at its end, also in the middle of a message. Raises
    `Broken` for one that is too large or not of the protocol.

    `decoder` only decodes bodies; it keeps no data between calls.
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
