"""Tokens of a request: the number that it allows, and the usage that its answer reports. Pure."""

from __future__ import annotations

import re
from math import ceil
from typing import NamedTuple

import msgspec

BYTES_A_TOKEN = 4
USAGE = re.compile(rb'"usage"\s*:\s*\{')
"""Beginning of a usage. It cannot occur inside a JSON string, where quotes are escaped."""
COUNT = re.compile(rb'"(prompt|input|completion|output|total)_tokens"\s*:\s*(\d{1,15})\b')
LONGEST = 1024
"""Most bytes of a usage that are read, nested objects included."""
SPLIT = 16
"""Bytes kept of the end of a chunk, where the beginning of a usage may be split."""
EVENT_END = b"\n\n"


class _Bounds(msgspec.Struct):
    """Keys of a body that bound its output; all others are skipped."""

    max_tokens: msgspec.Raw = msgspec.Raw(b"null")
    max_completion_tokens: msgspec.Raw = msgspec.Raw(b"null")
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"null")
    n: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Bounds).decode


class OutputAsked(NamedTuple):
    """Most tokens that a body allows each of its `answers`; 0 if it sets no bound."""

    tokens: int = 0
    answers: int = 1

    def most(self, longest: int) -> int:
        """Most tokens of all answers, if each has at most `longest`; 0 if the body has no bound."""
        return min(self.tokens, longest) * self.answers


def output_asked(body: bytes) -> OutputAsked:
    """Most output tokens that a JSON body allows for each answer, and its number of answers. A body
    that is not JSON counts as one answer without a limit of tokens (0)."""
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
    """Number of at most ten digits; 0 for any other value, which the engine refuses."""
    digits = bytes(text)
    return int(digits) if digits.isdigit() and len(digits) <= 10 else 0


class AnswerUsage:
    """Usage (numbers of tokens) reported by an answer that comes in chunks.

    The largest number of each kind counts: numbers in a stream grow, and text that the answer
    repeats from its request cannot lower them.
    """

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self.events = 0
        """Number of events in a stream; nearly each brings at least one token."""
        self._tail = b""

    @property
    def known(self) -> bool:
        """True once the answer has reported a number of tokens."""
        return bool(self._counts)

    @property
    def completion(self) -> int:
        """Generated tokens, by the reports so far."""
        return self._most(b"completion", b"output")

    @property
    def prompt(self) -> int:
        """Tokens of the prompt, by the reports so far. If they have none, but a total, it is the
        total minus the generated tokens."""
        own = self._most(b"prompt", b"input")
        return own or max(0, self._most(b"total") - self.completion)

    def look(self, chunk: bytes) -> None:
        """Read the next chunk of the answer."""
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
