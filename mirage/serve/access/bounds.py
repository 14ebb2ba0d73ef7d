"""Limits of a tenant for keys of a request's body, and the tenant's defaults for missing keys.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import msgspec

from mirage.serve.access.rates import NO_BOUNDS, BodyBounds
from mirage.serve.access.usage import OutputAsked, output_asked
from mirage.serve.api.openai import ApiError

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
"""Name of the key for the most tokens of an answer, on routes where it is not ``max_tokens``."""
SILENT = {"/v1/completions": 16}
"""Most tokens that vLLM generates, by route, for a request whose body sets no limit. On other
routes an answer is as long as the model allows.
"""
LONGEST = 100
"""Most bytes of a value that is parsed. A longer number counts as infinite."""
NUMERIC = re.compile(r"[\s\d_.eE+-]+")
"""Text that engines may read as a number."""


class ShapedBody(NamedTuple):
    """Body with the tenant's defaults added, and the output tokens that it allows.

    `output` keeps its defaults (0 tokens, 1 answer) if the tokens were not to be counted.
    """

    body: bytes
    output: OutputAsked


def shaped(body: bytes, route: str, bounds: BodyBounds, *, counts: bool = True) -> ShapedBody:
    """Check a JSON body of a route in `GENERATING` against `bounds`, and add defaults for missing
    keys; without a default, the bound of tokens is added. A form, or a body of another route, stays
    as it is.

    With `counts` the output tokens that the body allows are read from it. Raises `ApiError` if the
    body asks for more than `bounds` allow.
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
    """Most tokens that vLLM generates on `route` for a body without a limit.

    Infinite if vLLM has no such number there, or if the tenant's own default replaces it.
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
    """Values of the keys `names` in a JSON object, by key; None for keys that it lacks.

    A value of more than `LONGEST` bytes is not parsed: it is infinite if it begins with a digit,
    else ``...``. Raises `msgspec.DecodeError` for a body that is not a JSON object, such as a form.
    """
    found = _decoder(names)(body.removeprefix(b"\xef\xbb\xbf"))
    return {name: _value(bytes(getattr(found, name))) for name in names}


def _value(text: bytes) -> Any:
    if len(text) <= LONGEST:
        return msgspec.json.decode(text)
    if text[:1] in b"[{":
        return ...  # the engine judges it
    said = msgspec.json.decode(text, type=str) if text[:1] == b'"' else text.decode()
    return inf if NUMERIC.fullmatch(said) else ...


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
