"""Model and digest of a request's body, read and written by the router. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from hashlib import sha256
from typing import NamedTuple

import msgspec

from mirage.serve.api.openai import ApiError
from mirage.serve.http.json_text import checked, fault

FORM = "multipart/form-data"
MOST_PARTS = 1000
"""Most parts of a form that are read."""
LONGEST_NAME = 1000
"""Most bytes of a model's name."""
FIELD = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?([^";\r\n]+)"?', re.IGNORECASE)


class Long(NamedTuple):
    """Value that is too long to be a model's name, by its size alone."""

    bytes: int

    def __repr__(self) -> str:
        return f"a value of {self.bytes:,} bytes"


class _Body(msgspec.Struct):
    """Model named by a JSON body; the rest of the body is skipped, and no objects are made of it.

    A body of 60 MiB may hold twenty million lists; made into objects they took 22 seconds.
    """

    model: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Body).decode


def model_of(body: bytes, content_type: str) -> str:
    """Model's name in a request's body: JSON or a form. Raises `ApiError` if the body names none or
    cannot be read.
    """
    if (boundary := _boundary(content_type)) is not None:
        return _named(_form_field(body, boundary, b"model"))
    try:
        text = checked(body)
        return _named(_value(bytes(_decode(text).model)))
    except msgspec.ValidationError as error:
        raise ApiError(400, f"the body is not a JSON object: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {fault(body, error)}") from None


def _value(text: bytes) -> object:
    """Value of the key ``model``; a text that is too long for a name is not decoded."""
    return msgspec.json.decode(text) if len(text) <= LONGEST_NAME else Long(len(text))


def _named(model: object) -> str:
    if not isinstance(model, str) or not model:
        raise ApiError(400, f"'model' must name a model, found {model!r}", param="model")
    return model


def with_model(body: bytes, content_type: str, name: str) -> bytes:
    """Copy of a body that `model_of` has read, with `name` as the model's name."""
    if (boundary := _boundary(content_type)) is not None:
        return _with_field(body, boundary, b"model", name.encode())
    end = body.rindex(b"}")  # the last of several keys counts
    return body[:end] + b',"model":' + msgspec.json.encode(name) + body[end:]


def body_digest(route: str, body: bytes, content_type: str) -> str:
    """Digest that is equal for equal bodies on the same route; the boundary of a form does not
    matter.
    """
    digest = sha256(route.encode())
    boundary = _boundary(content_type)
    for part in [body] if boundary is None else _parts(body, boundary):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]


def _boundary(content_type: str) -> bytes | None:
    """Boundary of a form with several parts; None for other bodies."""
    if FORM not in content_type.lower():
        return None  # a quick answer for JSON
    message = Message()
    message["Content-Type"] = content_type
    boundary = message.get_param("boundary")
    if message.get_content_type() != FORM or not isinstance(boundary, str) or not boundary:
        return None
    return boundary.encode(errors="replace")


def _parts(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """Parts of a form, each with its own headers. Raises `ApiError` if there are too many."""
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary, MOST_PARTS + 2)
    if len(parts) > MOST_PARTS + 2:
        raise ApiError(400, f"the form has more than {MOST_PARTS} parts: send fewer")
    for part in parts[1:]:
        if not part.startswith(b"--"):
            yield part.removeprefix(b"\r\n")


def _with_field(body: bytes, boundary: bytes, name: bytes, value: bytes) -> bytes:
    """Copy of a form with another value in each field of that name."""
    mark = b"\r\n--" + boundary
    parts = (b"\r\n" + body).split(mark)
    for at, part in enumerate(parts[1:], 1):
        headers, blank, _ = part.partition(b"\r\n\r\n")
        found = FIELD.search(headers)
        if blank and found is not None and found[1] == name:
            parts[at] = headers + blank + value
    return mark.join(parts).removeprefix(b"\r\n")


def _form_field(body: bytes, boundary: bytes, name: bytes) -> str | None:
    for part in _parts(body, boundary):
        headers, _, value = part.partition(b"\r\n\r\n")
        found = FIELD.search(headers)
        if found is not None and found[1] == name:
            return value.decode(errors="replace")
    return None
