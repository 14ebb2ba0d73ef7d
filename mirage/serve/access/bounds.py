"""Bounds of a tenant for a request's body, and its defaults for keys that the body lacks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import msgspec

from mirage.serve.access.usage import OutputAsked, output_asked
from mirage.serve.openai import ApiError
from mirage.serve.rates import NO_BOUNDS, BodyBounds

GENERATING = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/responses",
        "/v1/messages",
    }
)
"""Routes whose answers are generated tokens."""
TOKENS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
LOGPROBS = ("logprobs", "top_logprobs", "prompt_logprobs")
OWN_NAMES = {"/v1/responses": "max_output_tokens"}
"""Key for the most tokens of an answer on routes where it is not ``max_tokens``."""
SILENT = {"/v1/completions": 16}
"""Most tokens of an answer whose body sets no limit, by route. On other routes it is as long as
the model allows.
"""
LONGEST = 100
"""Most bytes of a number that is read."""


class ShapedBody(NamedTuple):
    """A body within its tenant's bounds, and the output tokens that it allows.

    `output` is empty if these were not to be counted.
    """

    body: bytes
    output: OutputAsked


def shaped(body: bytes, route: str, bounds: BodyBounds, *, counts: bool = True) -> ShapedBody:
    """Body, a JSON object or a form, within `bounds`. Raises `ApiError` if it asks for more.

    With `counts` the output tokens that it allows are read from it.
    """
    if route in GENERATING and bounds != NO_BOUNDS:
        body = _bounded(body, route, bounds)
    return ShapedBody(body, output_asked(body) if counts else OutputAsked())


def _bounded(body: bytes, route: str, bounds: BodyBounds) -> bytes:
    try:
        said = _values(body, frozenset({*TOKENS, "n", *LOGPROBS, *bounds.defaults}))
    except msgspec.DecodeError:
        return body  # a form, which engines refuse here
    numbers = {name: _number(value) for name, value in said.items()}
    _check(numbers, TOKENS, bounds.max_tokens)
    _check(numbers, ("n",), bounds.n)
    endless = {name: inf if numbers[name] < 0 else numbers[name] for name in LOGPROBS}
    _check(endless, LOGPROBS, bounds.logprobs)
    missing = {name: value for name, value in bounds.defaults.items() if said[name] is None}
    usual = missing.pop("max_tokens", bounds.max_tokens)
    if usual is not None and all(said[name] is None for name in TOKENS):
        missing[OWN_NAMES.get(route, "max_tokens")] = min(usual, _silent(route, bounds))
    return _with(body, missing)


def _silent(route: str, bounds: BodyBounds) -> float:
    """Tokens that a route gives if the body sets no limit; infinite if there is a default for
    that.
    """
    return inf if "max_tokens" in bounds.defaults else SILENT.get(route, inf)


def _check(numbers: Mapping[str, float], names: Iterable[str], most: int | None) -> None:
    for name in names:
        if most is not None and numbers[name] > most:
            told = "all" if numbers[name] == inf else f"{numbers[name]:.15g}"
            message = f"{name} is {told}, and this model allows {most} at most: lower it"
            raise ApiError(400, message, param=name, code="beyond_bound")


def _with(body: bytes, missing: Mapping[str, Any]) -> bytes:
    """Text of a JSON object with keys added at its end.

    Readers take the last of equal keys, so that the added ones override those before them.
    """
    if not missing:
        return body
    end = body.rindex(b"}")
    more = b",".join(
        msgspec.json.encode(name) + b":" + msgspec.json.encode(value)
        for name, value in missing.items()
    )
    return body[:end] + b"," + more + body[end:]


def _values(body: bytes, names: frozenset[str]) -> dict[str, Any]:
    """Values of keys in a body that is known to be a JSON object; None for keys that it lacks."""
    found = _decoder(names)(body.removeprefix(b"\xef\xbb\xbf"))
    return {name: _value(bytes(getattr(found, name))) for name in names}


def _value(text: bytes) -> Any:
    if len(text) > LONGEST:
        return inf if text[:1].isdigit() else ...  # a list, say, which the engine judges
    return msgspec.json.decode(text)


def _number(value: Any) -> float:
    """Number that engines read from a value: they take ``"5"`` and ``5.0`` for 5. 0 for other
    values.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0
    try:
        return float(value)
    except (ValueError, OverflowError):
        return inf if isinstance(value, int) else 0.0


@lru_cache(maxsize=256)
def _decoder(names: frozenset[str]) -> Callable[[bytes], Any]:
    """Decoder that reads these keys of an object and skips all others."""
    keys = [(name, msgspec.Raw, msgspec.Raw(b"null")) for name in sorted(names)]
    return msgspec.json.Decoder(msgspec.defstruct("BodyKeys", keys)).decode
