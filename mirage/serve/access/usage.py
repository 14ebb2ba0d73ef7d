"""Tokens of a request: what it asks for, and what its answer says that it took. Pure."""

from __future__ import annotations

import re
from math import ceil
from typing import NamedTuple

import msgspec

BYTES_A_TOKEN = 4
USAGE = re.compile(rb'"usage"\s*:\s*\{')
"""No text holds one, as JSON escapes quotes."""
COUNT = re.compile(rb'"(prompt|input|completion|output|total)_tokens"\s*:\s*(\d{1,15})\b')
LONGEST = 1024
"""Bytes of a usage that are looked at, nested parts included."""
SPLIT = 16
"""Bytes of the beginning of a usage that may stand at the end of a chunk."""
EVENT_END = b"\n\n"


class _Bounds(msgspec.Struct):
    """Keys of a body by which clients bound what is generated; the rest is passed over."""

    max_tokens: msgspec.Raw = msgspec.Raw(b"null")
    max_completion_tokens: msgspec.Raw = msgspec.Raw(b"null")
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"null")
    n: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Bounds).decode


class OutputAsked(NamedTuple):
    """Tokens that a body allows each of `answers` to have; 0 if it does not say."""

    tokens: int = 0
    answers: int = 1

    def most(self, longest: int) -> int:
        """Tokens of all, of which each has at most `longest`."""
        return min(self.tokens, longest) * self.answers


def output_asked(body: bytes) -> OutputAsked:
    """Bounds in a body; those of one that is not JSON are not read."""
    try:
        asked = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return OutputAsked()
    each = (asked.max_completion_tokens, asked.max_tokens, asked.max_output_tokens)
    return OutputAsked(next(filter(None, map(_count, each)), 0), max(1, _count(asked.n)))


def prompt_guess(nbytes: int, longest: int) -> int:
    """Estimated tokens of a prompt in a body of `nbytes` bytes, at most `longest`."""
    return min(ceil(nbytes / BYTES_A_TOKEN), longest)


def _count(text: msgspec.Raw) -> int:
    """A number of at most ten digits; 0 for anything else, which the engine refuses."""
    digits = bytes(text)
    return int(digits) if digits.isdigit() and len(digits) <= 10 else 0


class AnswerUsage:
    """The usage in an answer that comes in chunks.

    The largest numbers count: those of a stream grow, and what an answer repeats of its request
    can then make nothing less.
    """

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self.events = 0
        """Events of a stream, of which nearly each brings a token at least."""
        self._tail = b""

    @property
    def known(self) -> bool:
        """True once the answer has told a usage."""
        return bool(self._counts)

    @property
    def completion(self) -> int:
        """Tokens generated."""
        return self._most(b"completion", b"output")

    @property
    def prompt(self) -> int:
        """Tokens of prompts; of answers that tell the sum alone it is what is left of that."""
        own = self._most(b"prompt", b"input")
        return own or max(0, self._most(b"total") - self.completion)

    def look(self, chunk: bytes) -> None:
        """The next bytes of the answer."""
        self.events += chunk.count(EVENT_END)
        text = self._tail + chunk
        last = len(text)
        for found in USAGE.finditer(text):
            last = found.start()
            for name, digits in COUNT.findall(text[last : last + LONGEST]):
                self._counts[name] = max(self._counts.get(name, 0), int(digits))
        self._tail = text[last:] if 0 < len(text) - last < LONGEST else text[-SPLIT:]

    def _most(self, *names: bytes) -> int:
        return max(self._counts.get(name, 0) for name in names)
