"""Requests on ``/v1/responses`` that need their answers to be kept. Pure.

vLLM keeps answers in the memory of one API server, if at all, and drops none: a client could fill
that memory, an engine that ends loses them, and their ids name no tenant. If it keeps none, vLLM
ignores ``store: true``. Here such a request is refused, so that no client relies on an answer being
kept.
"""

from __future__ import annotations

import msgspec

from mirage.serve.api.openai import ApiError

ROUTE = "/v1/responses"
NULL = b"null"
OFF = (NULL, b"false")


class _Keys(msgspec.Struct):
    """Keys of a body that need answers to be kept; all others are skipped."""

    store: msgspec.Raw = msgspec.Raw(NULL)
    background: msgspec.Raw = msgspec.Raw(NULL)
    previous_response_id: msgspec.Raw = msgspec.Raw(NULL)


_decode = msgspec.json.Decoder(_Keys).decode


def check_unkept(body: bytes, route: str) -> None:
    """Raise `ApiError` if a body on ``/v1/responses``, which is a JSON object, needs an answer to
    be kept. Nothing is checked on other routes.
    """
    if route != ROUTE:
        return
    try:
        asked = _decode(body.removeprefix(b"\xef\xbb\xbf"))
    except msgspec.DecodeError:
        return  # a form, which engines refuse here
    if bytes(asked.store) not in OFF:
        raise _refused("store", "leave it out, or send false")
    if bytes(asked.background) not in OFF:
        raise _refused("background", "leave it out, or send false, and read the answer as a stream")
    if bytes(asked.previous_response_id) != NULL:
        raise _refused("previous_response_id", "send what was said before in input")


def _refused(param: str, instead: str) -> ApiError:
    message = f"responses are not kept here, and {param} needs that: {instead}"
    return ApiError(400, message, param=param, code="response_not_kept")
