"""Requests that two readers may end in different places, and bytes that are no requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import NamedTuple

HIDDEN = "hidden"
"""Prompt of a request that stands where only a careless reader finds one."""
CRLF = b"\r\n"


class OddRequest(NamedTuple):
    """Bytes to send over one connection, and the number and kind of answers that are allowed."""

    name: str
    data: bytes
    most: int = 1
    """Most requests that an engine may see of them."""
    legal: bool = False
    """True if RFC 9112 obliges a server to serve all `most`."""


def body(name: str) -> bytes:
    """Body of a completion whose prompt is the name of its request."""
    return json.dumps({"model": "a", "prompt": name}).encode()


def post(name: str, *more: bytes, length: bool = True) -> bytes:
    """Request for a completion. `more` are further headers; without `length` they say where its
    body ends.
    """
    text = body(name)
    own = [b"Content-Length: %d" % len(text)] if length else []
    return head(*own, *more) + text


def head(*more: bytes, line: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    lines = [line, b"Host: localhost", b"Content-Type: application/json", *more]
    return CRLF.join([*lines, b"", b""])


def chunk(data: bytes, size: bytes | None = None) -> bytes:
    return (b"%x" % len(data) if size is None else size) + CRLF + data + CRLF


END = b"0\r\n\r\n"
SMUGGLED = post(HIDDEN)


def corpus() -> list[OddRequest]:
    """Odd requests of all kinds. A request that an engine may see has its name as prompt."""
    return [*lengths(), *codings(), *chunks(), *lines(), *targets(), *several()]


def lengths() -> Iterator[OddRequest]:
    """Requests with odd Content-Length headers. Behind most of them a second request is hidden."""

    def of(name: str, *values: bytes, most: int = 0, legal: bool = False) -> OddRequest:
        size = b"%d" % len(body(name))
        told = [b"Content-Length: " + value.replace(b"N", size) for value in values]
        tail = b"" if legal else SMUGGLED
        return OddRequest(name, head(*told) + body(name) + tail, most, legal)

    yield of("length twice, first right", b"N", b"0")
    yield of("length twice, first wrong", b"0", b"N")
    yield of("length twice, alike", b"N", b"N")
    yield of("length as a list", b"N, N")
    yield of("length as an odd list", b"N, 0")
    for value in (
        b"+N",
        b"-N",
        b"-0",
        b"0xN",
        b"N.0",
        b"N_0",
        b"1_0",
        b"N;",
        b'"N"',
        b"",
        b"\x0bN",
    ):
        yield of(f"length {value!r}", value)
    yield of("length in other digits", "٣١".encode())
    yield of("length with a blank that is none", b"\xa0N", b"N\xa0")
    yield of("length beyond all numbers", b"9" * 400)
    yield of("length of 2^64 and more", b"%d" % (1 << 64))
    yield of("length with zeros", b"0000N", most=1, legal=True)
    yield of("length among blanks", b" \tN \t", most=1, legal=True)
    for line in (b"Content-Length : N", b"Content_Length: N", b"Content-Length\x00: N", b" X: y"):
        name = f"length by {line!r}"
        told = line.replace(b"N", b"%d" % len(body(name)))
        yield OddRequest(name, head(told) + body(name) + SMUGGLED, 0)
    name = "length folded"
    yield OddRequest(name, head(b"Content-Length:\r\n %d" % len(body(name))) + body(name), 0)
    name = "length hidden behind a bare return"
    yield OddRequest(name, post(name, b"X: y\rContent-Length: 0") + SMUGGLED, 0)
    name = "length hidden behind a bare feed"
    yield OddRequest(name, head(b"X: y\nContent-Length: %d" % len(body(name))) + body(name), 0)


def codings() -> Iterator[OddRequest]:
    """Requests with odd Transfer-Encoding headers. Most of them hide a second request in their
    chunks or behind them.
    """
    for value in (
        *(b"xchunked", b"chunkedx", b"chunked, identity", b"identity, chunked", b"identity"),
        *(b"chunked, chunked", b"chunked;q=1", b'"chunked"', b"x, chunked", b"chunked\x00"),
        *(b"\x0bchunked", b"chunked,", b",chunked", b"", b"gzip", b"gzip, chunked", b"\xa0chunked"),
        *(b"chunked, gzip", b"deflate", b"c\xcchunked"),
    ):
        name = f"coding {value!r}"
        data = head(b"Transfer-Encoding: " + value) + chunk(body(name)) + END + SMUGGLED
        yield OddRequest(name, data, 0)
    for line in (
        *(b"Transfer-Encoding : chunked", b"Transfer_Encoding: chunked"),
        *(b"Transfer-Encoding\x00: chunked", b"X: y\rTransfer-Encoding: chunked"),
        *(b"Transfer-Encoding:\r\n chunked", b"X: y\nTransfer-Encoding: chunked"),
        *(b"\x0bTransfer-Encoding: chunked", b"Transfer-Encoding\r\n : chunked"),
    ):
        name = f"coding by {line!r}"
        yield OddRequest(name, head(line) + chunk(body(name)) + END + SMUGGLED, 0)
    both = [b"Transfer-Encoding: chunked", b"Content-Length: 4"]
    for order in (both, both[::-1]):
        name = f"chunks and length, {order[0][:7].decode()} first"
        yield OddRequest(name, head(*order) + chunk(body(name)) + END + SMUGGLED, 0)
    name = "chunks said twice"
    yield OddRequest(name, head(both[0], both[0]) + chunk(body(name)) + END + SMUGGLED, 0)
    name = "chunks, then identity"
    other = b"Transfer-Encoding: identity"
    yield OddRequest(name, head(both[0], other) + chunk(body(name)) + END + SMUGGLED, 0)
    name = "chunks in HTTP/1.0"
    line = b"POST /v1/completions HTTP/1.0"
    yield OddRequest(name, head(both[0], line=line) + chunk(body(name)) + END + SMUGGLED, 0)
    for value in (b"chunked", b"Chunked", b"chunKed", b"\t chunked", b"chunked\t "):
        name = f"chunks as {value!r}"
        data = head(b"Transfer-Encoding: " + value) + chunk(body(name)) + END
        yield OddRequest(name, data, 1, not value.endswith(b" "))


def chunks() -> Iterator[OddRequest]:
    """Requests with odd chunks, most of them with a hidden request behind."""
    told = head(b"Transfer-Encoding: chunked")

    def of(name: str, sent: bytes, most: int = 0, legal: bool = False) -> OddRequest:
        return OddRequest(name, told + sent + (b"" if legal else SMUGGLED), most, legal)

    for form in (b"0x%x", b"+%x", b"-%x", b" %x", b"%x ", b"%x_", b"%xg", b"\t%x", b"%x\x0b"):
        name = f"chunk of {form!r}"
        yield of(name, chunk(body(name), form % len(body(name))) + END)
    for size in (b"", b"F" * 17, b"1" + b"0" * 16, b"8" + b"0" * 15, b"f" * 4000, "٣".encode()):
        yield of(f"chunk of {size[:20]!r}", chunk(b"x", size) + END)
    name = "chunk that is longer than it says"
    yield of(name, chunk(body(name), b"5") + END)
    name = "chunk that is shorter than it says"
    yield of(name, chunk(body(name), b"%x" % (len(body(name)) + 2)) + END)
    name = "chunk that ends by a feed"
    yield of(name, b"%x\r\n%s\n" % (len(body(name)), body(name)) + END)
    name = "chunk whose size ends by a feed"
    yield of(name, b"%x\n%s\r\n" % (len(body(name)), body(name)) + END)
    name = "chunk whose size ends by a return"
    yield of(name, b"%x\r%s\r\n" % (len(body(name)), body(name)) + END)
    name = "last chunk that ends by feeds"
    yield of(name, chunk(body(name)) + b"0\n\n")
    name = "chunk with a feed in its extension"
    yield of(name, chunk(body(name), b"%x;a\nb" % len(body(name))) + END)
    name = "chunk with a zero byte in its extension"
    yield of(name, chunk(body(name), b"%x;a\x00" % len(body(name))) + END)
    name = "chunk with an endless extension"
    yield of(name, chunk(body(name), b"%x;a=" % len(body(name)) + b"b" * 200_000) + END, 1, True)
    name = "chunk with an extension"
    yield of(name, chunk(body(name), b"%x;a=b" % len(body(name))) + END, 1, True)
    name = "chunk of zeros and capitals"
    yield of(name, chunk(body(name), b"000%X" % len(body(name))) + END, 1, True)
    name = "a chunk for each byte"
    yield of(name, b"".join(chunk(bytes([each])) for each in body(name)) + END, 1, True)
    name = "trailers that say another end"
    told_behind = b"0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: evil\r\n\r\n"
    yield of(name, chunk(body(name)) + told_behind)
    name = "a trailer that is none"
    yield of(name, chunk(body(name)) + b"0\r\nPOST / HTTP/1.1\r\n\r\n")
    name = "chunks without an end"
    yield OddRequest(name, told + chunk(body(name)) + b"0\r\n", 0)


def lines() -> Iterator[OddRequest]:
    """Requests with odd header lines; bodies have a usual Content-Length."""
    for line in (
        *(b"X : y", b": y", b"X", b" X: y", b"\tX: y", b"X\x00: y", b"X: y\x00", b"X\r: y"),
        *(b"X: y\rZ", b"X: a\r\n b", b"X y: z", b"X\x7f: y", b"X(: y", b"X: \x01", b"X: \x7f"),
        *(b"X\xff: y", b"\x00", b"X: y\r", b"X: y\n", b"X: y\n\n" + SMUGGLED, b"X:: y\x08"),
    ):
        name = f"line {line[:12]!r}"
        yield OddRequest(name, post(name, line) + SMUGGLED, 0)
    for value in (b"localhost", b"evil", b""):
        name = f"host twice, {value!r}"
        yield OddRequest(name, post(name, b"Host: " + value) + SMUGGLED, 0)
    for host in (b"", b"a b", b"a/b", b"a@b", b"a\tb", b"[::1", b"a:b", b"a,b", b"a#b"):
        name = f"host {host!r}"
        yield OddRequest(name, post(name).replace(b"localhost", host), 1)
    name = "no host"
    yield OddRequest(name, post(name).replace(b"Host: localhost\r\n", b"") + SMUGGLED, 0)
    name = "feeds alone"
    yield OddRequest(name, post(name).replace(CRLF, b"\n") + SMUGGLED, 0)
    name = "returns alone"
    yield OddRequest(name, post(name).replace(CRLF, b"\r") + SMUGGLED, 0)
    name = "a head that ends by feeds"
    yield OddRequest(name, post(name).replace(CRLF * 2, b"\r\n\n") + SMUGGLED, 0)
    name = "blank lines before"
    yield OddRequest(name, CRLF * 2 + post(name), 1, True)


def targets() -> Iterator[OddRequest]:
    """Requests with odd request lines."""
    for line, most in (
        (b"POST /v1/completions", 0),
        (b"POST  /v1/completions HTTP/1.1", 1),
        (b"POST\t/v1/completions\tHTTP/1.1", 0),
        (b"POST /v1/completions HTTP/1.1 ", 0),
        (b"POST /v1/completions HTTP/1.1\x00", 0),
        (b"POST /v1/completions http/1.1", 0),
        (b"POST /v1/completions HTTP/1.10", 0),
        (b"POST /v1/completions HTTP/01.1", 0),
        (b"POST /v1/completions HTTP/+1.1", 0),
        (b"POST /v1/completions HTTP/2.0", 0),
        (b"POST /v1/completions HTTP/0.9", 0),
        (b"POST /v1/completions XTTP/1.1", 0),
        (b"POST /v1/comp letions HTTP/1.1", 0),
        (b"POST /v1/\x00completions HTTP/1.1", 0),
        (b"POST v1/completions HTTP/1.1", 0),
        (b"POST * HTTP/1.1", 0),
        (b"PO\x00ST /v1/completions HTTP/1.1", 0),
        (b" POST /v1/completions HTTP/1.1", 0),
        (b"POST: /v1/completions HTTP/1.1", 0),
        (b"post /v1/completions HTTP/1.1", 0),
        (b"CONNECT localhost:80 HTTP/1.1", 0),
        (b"TRACE /v1/completions HTTP/1.1", 0),
        (b"HEAD /v1/completions HTTP/1.1", 0),
        (b"GET /v1/models HTTP/1.1", 0),
        (b"POST /v1/completions/../nowhere HTTP/1.1", 0),
        (b"POST //evil/v1/completions HTTP/1.1", 0),
        (b"POST /v1/completions#x HTTP/1.1", 1),
        (b"POST http://localhost/v1/completions HTTP/1.1", 1),
        (b"POST http://evil/v1/completions HTTP/1.1", 1),
        (b"POST http://a@evil:99/v1/completions HTTP/1.1", 1),
        (b"POST ftp://evil/v1/completions HTTP/1.1", 1),
        (b"POST /v1/%63ompletions HTTP/1.1", 1),
        (b"POST /v1/completions?a=%0d%0aX:%20y HTTP/1.1", 1),
        (b"POST /v1/completions?a=\xff\xfe HTTP/1.1", 1),
    ):
        name = f"target {line!r}"
        sent = head(b"Content-Length: %d" % len(body(name)), line=line) + body(name)
        yield OddRequest(name, sent, most)
    yield OddRequest("HTTP/0.9", b"GET /v1/models\r\n", 0)
    yield OddRequest("HTTP/0.9 with a body", b"POST /v1/completions\r\n\r\n" + body("x"), 0)
    yield OddRequest("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED, 0)


def several() -> Iterator[OddRequest]:
    """Several requests on one connection, and bodies that look like requests."""
    yield OddRequest("two in a row", post("two in a row") * 2, 2, True)
    yield OddRequest("fifty in a row", post("fifty in a row") * 50, 50, True)
    yield OddRequest("one and garbage", post("one and garbage") + b"\x00garbage\r\n\r\n", 1)
    name = "one that closes, and another one"
    yield OddRequest(name, post(name, b"Connection: close") + SMUGGLED, 1)
    name = "one of HTTP/1.0, and another one"
    old = post(name).replace(b"HTTP/1.1", b"HTTP/1.0")
    yield OddRequest(name, old + SMUGGLED, 1)
    for path in (b"/nowhere", b"/v1/models", b"/sleep", b"/v1/realtime", b"/live"):
        for method in (b"GET", b"POST", b"DELETE"):
            line = b"%s %s HTTP/1.1" % (method, path)
            length = b"Content-Length: %d" % len(SMUGGLED)
            told = head(length, line=line) + SMUGGLED
            yield OddRequest(f"a body of {line!r} that is a request", told, 0)
            told = head(b"Transfer-Encoding: chunked", line=line) + chunk(SMUGGLED) + END
            yield OddRequest(f"chunks of {line!r} that are a request", told, 0)
    name = "a body beyond all bounds"
    yield OddRequest(name, head(b"Content-Length: 99999999999") + SMUGGLED, 0)
    name = "more than is told"
    yield OddRequest(name, post(name) + b'"}', 1)
    name = "a body that is asked for"
    yield OddRequest(name, post(name, b"Expect: 100-continue"), 1, True)
    name = "an expectation and an end of another kind"
    yield OddRequest(name, post(name, b"Expect: 100-continue, chunked"), 0)
    upgrade = (b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    name = "an upgrade to HTTP/2"
    yield OddRequest(name, post(name, b"Connection: Upgrade, HTTP2-Settings", *upgrade), 1)
    name = "an upgrade to a WebSocket"
    more = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13")
    yield OddRequest(name, post(name, *more, b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 1)
    name = "a length that the connection names"
    yield OddRequest(name, post(name, b"Connection: Content-Length, Host"), 1, True)


def malformed(seed: int, count: int) -> Iterator[bytes]:
    """`count` requests drawn by `seed`, each with at least one byte that no request may have."""
    dice = random.Random(seed)
    for number in range(count):
        data = bytearray(post(str(number)))
        end = data.index(b"\r\n\r\n")
        match dice.randrange(6):
            case 0:  # noise
                data = bytearray(dice.randbytes(dice.randrange(1, 400)) + b"\r\n\r\n")
            case 1:  # a byte that stands nowhere in a head
                data[dice.randrange(end)] = dice.choice(b"\x00\x01\x0b\x7f")
            case 2:  # a line that ends in another way
                at = data.index(b"\r\n", dice.randrange(end))
                data[at : at + 2] = dice.choice([b"\n\r", b"\r", b"\r\r\n"])
            case 3:
                data[end:end] = b"\r\n" + dice.choice([b"no colon", b" X: y", b": x", b"X : y"])
            case 4:
                data[end:end] = b"\r\nContent-Length: " + dice.choice([b"7", b"x", b"-1", b"1e3"])
            case _:
                data = data.replace(b"HTTP/1.1", dice.choice([b"HTTP/9.9", b"HTTP", b"", b"x y"]))
        yield bytes(data)
