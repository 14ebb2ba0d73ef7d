"""The name by which a client asked for its model, in the answer of an engine. Pure.

An engine knows its model by the tenant's name alone, so that aliases come and go while it runs.
JSON escapes quotes in text: what looks like a key with that value is one.
"""

from __future__ import annotations

import re

import msgspec

TYPES = ("application/json", "text/event-stream")
"""Types of answers that name their model."""


class AnswerName:
    """Answer that comes in chunks, with `alias` where an engine has `name`."""

    def __init__(self, name: str, alias: str) -> None:
        told = msgspec.json.encode(name)
        self._forms = (b'"model":' + told, b'"model": ' + told)
        self._found = re.compile(rb'(?<!\\)"model": ?' + re.escape(told))
        self._alias = b'"model":' + msgspec.json.encode(alias)
        self._before, self._held = b"", b""

    def take(self, chunk: bytes) -> bytes:
        """The next bytes of the answer; returns those that may be passed on."""
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
        """Bytes at the end that may be the beginning of the name."""
        begin = max(0, len(text) - len(self._forms[-1]) + 1)
        while (begin := text.find(b'"', begin)) >= 0:
            if any(form.startswith(text[begin:]) for form in self._forms):
                return len(text) - begin
            begin += 1
        return 0
