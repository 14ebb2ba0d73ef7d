"""Replacement of the model's name in an engine's answer by the name that the client used. Pure.

An engine knows only its tenant's own name, so that aliases can change while it runs. JSON escapes
quotes inside text, so bytes that look like a key ``model`` with that value are one.
"""

from __future__ import annotations

import re

import msgspec

TYPES = ("application/json", "text/event-stream")
"""Media types of answers that name their model."""


class AnswerName:
    """An answer that comes in chunks, in which the engine's `name` is replaced by `alias`."""

    def __init__(self, name: str, alias: str) -> None:
        told = msgspec.json.encode(name)
        self._forms = (b'"model":' + told, b'"model": ' + told)
        self._found = re.compile(rb'(?<!\\)"model": ?' + re.escape(told))
        self._alias = b'"model":' + msgspec.json.encode(alias)
        self._before, self._held = b"", b""

    def take(self, chunk: bytes) -> bytes:
        """Add the next bytes of the answer; return those that may be passed on."""
        text = self._found.sub(self._put, self._before + self._held + chunk)[len(self._before) :]
        kept = self._begun(text)
        passed, self._held = text[: len(text) - kept], text[len(text) - kept :]
        self._before = passed[-1:] or self._before
        return passed

    def rest(self) -> bytes:
        """Bytes still held at the end of the answer."""
        return self._held

    def _put(self, found: re.Match[bytes]) -> bytes:
        return self._alias

    def _begun(self, text: bytes) -> int:
        """Number of bytes at the end of `text` that may be the beginning of the key ``model`` with
        the engine's name as its value."""
        begin = max(0, len(text) - len(self._forms[-1]) + 1)
        while (begin := text.find(b'"', begin)) >= 0:
            if any(form.startswith(text[begin:]) for form in self._forms):
                return len(text) - begin
            begin += 1
        return 0
