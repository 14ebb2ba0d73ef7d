"""What the router reads in a request's body: the model, and a fingerprint. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from email.message import Message
from hashlib import sha256

from mirage.serve.openai import ApiError

FORM = "multipart/form-data"
FIELD = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?([^";\r\n]+)"?', re.IGNORECASE)


def model_of(body: bytes, content_type: str) -> str:
    """The request's ``model``. Raises `ApiError`."""
    if (boundary := _boundary(content_type)) is not None:
        return _named(_form_field(body, boundary, b"model"))
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body is not a JSON object: {type(fields).__name__}")
    return _named(fields.get("model"))


def _named(model: object) -> str:
    if not isinstance(model, str) or not model:
        raise ApiError(400, f"'model' must name a model, found {model!r}", param="model")
    return model


def fingerprint(route: str, body: bytes, content_type: str) -> str:
    """Equal for equal bodies on the same route, whatever boundary a form was given."""
    digest = sha256(route.encode())
    boundary = _boundary(content_type)
    for part in [body] if boundary is None else _parts(body, boundary):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def _boundary(content_type: str) -> bytes | None:
    """None unless the body is a form of several parts."""
    message = Message()
    message["Content-Type"] = content_type
    boundary = message.get_param("boundary")
    if message.get_content_type() != FORM or not isinstance(boundary, str) or not boundary:
        return None
    return boundary.encode(errors="replace")


def _parts(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """Each with its own headers."""
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:]:
        if not part.startswith(b"--"):
            yield part.removeprefix(b"\r\n")


def _form_field(body: bytes, boundary: bytes, name: bytes) -> str | None:
    for part in _parts(body, boundary):
        headers, _, value = part.partition(b"\r\n\r\n")
        found = FIELD.search(headers)
        if found is not None and found[1] == name:
            return value.decode(errors="replace")
    return None
