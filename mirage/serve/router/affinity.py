"""Key of a request's session or prefix, by which one replica gets all requests of a key. Pure.

A session is named by the client. A prefix is the beginning of a conversation, up to its first
message of a user, which all requests of the conversation have in common.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec

from mirage.control.routes.routing import affinity_key
from mirage.serve.access.bounds import GENERATING
from mirage.units import KIB

SESSION_HEADER = "X-Session-ID"
SESSION_KEYS = ("prompt_cache_key", "user")
"""Keys of a body that name a session; the first that has a text counts."""
LEADING = ("system", "instructions")
"""Keys of text that precedes a conversation."""
SPOKEN = ("messages", "input", "prompt")
"""Keys of a conversation, or of a text; the first that is there counts."""
LEAST_BYTES = 512
"""Bytes of a conversation or text from which on it has a prefix; shorter ones are computed again
quickly. The prefix of a plain text has this length.
"""
MOST_BYTES = 64 * KIB
"""Most bytes of each part of a body that a prefix is computed from."""
LONGEST_SESSION = 256
"""Most characters of a session's name that count; of a name in the body, bytes."""
BETWEEN = re.compile(r"[\s,]*")
"""Characters between two messages."""
BODY_KEYS = (*SESSION_KEYS, *LEADING, *SPOKEN)

_Body = msgspec.defstruct(
    "AffinityBody", [(key, msgspec.Raw, msgspec.Raw(b"null")) for key in BODY_KEYS]
)
_decode = msgspec.json.Decoder(_Body).decode


def affinity_of(headers: Mapping[str, str], route: str, body: bytes) -> str:
    """Key of a request on `route`; empty if it has neither session nor prefix, or the route
    generates no text."""
    if route not in GENERATING:
        return ""
    if session := headers.get(SESSION_HEADER, ""):
        return affinity_key(session[:LONGEST_SESSION], "")
    try:
        said = _decode(body.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, RecursionError):
        return ""  # engines refuse it
    values = {key: bytes(getattr(said, key)) for key in BODY_KEYS}
    return affinity_key(_session(values[key] for key in SESSION_KEYS), _prefix(values))


def _session(values: Iterable[bytes]) -> str:
    """First nonempty JSON string of these values, cut to `LONGEST_SESSION`; empty if there is
    none.
    """
    texts = (value[1:-1][:LONGEST_SESSION] for value in values if value[:1] == b'"')
    return next((text.decode(errors="replace") for text in texts if text), "")


def _prefix(values: Mapping[str, bytes]) -> str:
    """Digest of the beginning of a conversation or text; empty if the whole of it is shorter than
    `LEAST_BYTES`.
    """
    spoken = next((values[key] for key in SPOKEN if values[key] != b"null"), b"")
    if len(spoken) < LEAST_BYTES:
        return ""
    digest = sha256()
    for part in (*(values[key][:MOST_BYTES] for key in LEADING), _beginning(spoken)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]


def _beginning(spoken: bytes) -> bytes:
    """Part of a conversation or text from which its prefix is computed: the messages up to and
    including the first one of a user, or the first `LEAST_BYTES` of a text.

    Of a conversation at most `MOST_BYTES` are looked at, and all of them count if no message there
    is a user's.
    """
    if spoken[:1] != b"[":
        return spoken[:LEAST_BYTES]
    text, decoder, at = spoken[:MOST_BYTES].decode(errors="ignore"), json.JSONDecoder(), 1
    try:
        while True:
            between = BETWEEN.match(text, at)
            message, at = decoder.raw_decode(text, between.end() if between else at)
            if not isinstance(message, dict) or message.get("role") == "user":
                return text[:at].encode()
    except (ValueError, RecursionError):  # longer than is looked at, or no message of a user
        return text.encode()
