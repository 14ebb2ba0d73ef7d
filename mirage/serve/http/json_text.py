"""JSON as RFC 8259 defines it: check of a text's encoding, and the reason why a text is not JSON.
Pure.

vLLM reads JSON as Python does, which accepts NaN and half a surrogate pair: no tokenizer takes such
text, and no sampler such a number.
"""

from __future__ import annotations

import re
import sys
from codecs import BOM_UTF8, getincrementaldecoder

import msgspec

from mirage.units import MIB

NUMBERS = re.compile(rb"NaN|-?Infinity")
"""Numbers that Python writes, but JSON does not have."""
HALF = re.compile(rb"\\u[dD][89abAB]..")
"""First half of a surrogate pair."""
PLACE = re.compile(r"\(byte (\d+)\)")
PIECE = MIB
PADDING = b" " * 16
"""Blanks that are appended to a text, more than msgspec reads after the first half of a surrogate
pair.
"""

_check = msgspec.json.Decoder(msgspec.Raw).decode


def checked(text: bytes) -> bytes:
    """The text without a byte order mark. Raises `UnicodeDecodeError` unless it is UTF-8.

    This is needed because a decoder does not check the characters of values that it skips.
    """
    if text.isascii():
        return text
    decoder = getincrementaldecoder("utf-8")()
    for begin in range(0, len(text) or 1, PIECE):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(text[begin : begin + PIECE], final=begin + PIECE >= len(text))
        except UnicodeDecodeError as error:
            at = begin - pending + error.start
            raise UnicodeDecodeError("utf-8", text, at, at + 1, error.reason) from None
    return text.removeprefix(BOM_UTF8)


def fault(text: bytes, error: Exception) -> str:
    """Reason why `text` is not JSON; `error` is the one that a decoder raised over it."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start} (0x{text[error.start]:02x})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not text:
        return "it is empty"
    bare = text.removeprefix(BOM_UTF8)
    words = str(error)
    if "truncated" in words:
        words = _said_of(bare + PADDING)
        if _place(words) >= len(bare):
            return "it ends too early"
    return _told(bare, words)


def _said_of(text: bytes) -> str:
    try:
        _check(text)
    except msgspec.DecodeError as error:
        return str(error)
    return ""


def _place(words: str) -> int:
    found = PLACE.search(words)
    return int(found[1]) if found is not None else sys.maxsize


def _told(text: bytes, words: str) -> str:
    at = _place(words)
    if "surrogate" in words or HALF.fullmatch(text[at - 6 : at]):
        return (
            f"half of a surrogate pair, as \\ud83d alone, before byte {at}: "
            "send both halves, or the letter itself"
        )
    begin = at - 1 if text[at - 1 : at] == b"-" else at
    if (number := NUMBERS.match(text, begin)) is not None:
        return f"{number[0].decode()} at byte {begin} is no number of JSON: leave it out"
    return words.removeprefix("JSON is malformed: ")
