"""Key of a request's session or prefix: requests of one key go to one replica, if it can. Pure.

A session is what the client calls one. A prefix is the beginning of a conversation: all up to its
first message of a user, which is in each of its requests.
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
"""Keys of a body that name a session, the first that is there."""
LEADING = ("system", "instructions")
"""Keys of a text before a conversation."""
SPOKEN = ("messages", "input", "prompt")
"""Keys of a conversation, or of a text."""
LEAST_BYTES = 512
"""Bytes of a conversation or text from which its prefix counts: what is shorter is read again in no
time. Of a text, so many are its prefix."""
MOST_BYTES = 64 * KIB
"""Bytes that are looked at."""
LONGEST_SESSION = 256
"""Bytes of a session's name that count."""
BETWEEN = re.compile(r"[\s,]*")
"""Characters between two messages."""
BODY_KEYS = (*SESSION_KEYS, *LEADING, *SPOKEN)

_Body = msgspec.defstruct(
    "AffinityBody", [(key, msgspec.Raw, msgspec.Raw(b"null")) for key in BODY_KEYS]
)
_decode = msgspec.json.Decoder(_Body).decode


def affinity_of(headers: Mapping[str, str], route: str, body: bytes) -> str:
    """Key of a request for text on `route`; empty if it has neither session nor prefix."""
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
    """The first that is a text."""
    texts = (value[1:-1][:LONGEST_SESSION] for value in values if value[:1] == b'"')
    return next((text.decode(errors="replace") for text in texts if text), "")


def _prefix(values: Mapping[str, bytes]) -> str:
    """Digest of a conversation's or text's beginning, empty if it is short."""
    spoken = next((values[key] for key in SPOKEN if values[key] != b"null"), b"")
    if len(spoken) < LEAST_BYTES:
        return ""
    digest = sha256()
    for part in (*(values[key][:MOST_BYTES] for key in LEADING), _beginning(spoken)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]


def _beginning(spoken: bytes) -> bytes:
    """Messages up to the first of a user, or the first bytes of a text."""
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
