"""Route that a client may have meant by a path that is no route. Pure.

Clients append a path to a base URL: OpenAI's need a base URL that ends in ``/v1``, Anthropic's one
that does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

VERSION = "v1"
MODEL = "{model}"
"""Placeholder for a model's name in a route."""
CLOSE = 0.8
LONGEST = 200
"""Most characters of a path that are examined and repeated in a message."""


def advice(method: str, path: str, routes: Iterable[tuple[str, str]]) -> str:
    """Advice on a `path` that is no route, such as "use GET /v1/models"; empty if no route is
    similar.

    `routes` are pairs of method and path; those of `method` are preferred. A route of another
    method is suggested only if no part of its path is a parameter.
    """
    known = [(verb, route) for verb, route in routes if verb != "HEAD"]
    own = [pair for pair in known if pair[0] == method]
    for some in (own, [pair for pair in known if MODEL not in pair[1]]):
        if found := _meant(path[:LONGEST], some):
            verb, route = found
            return f"use {verb} {route}{_why(path, route)}"
    return ""


def _meant(path: str, routes: list[tuple[str, str]]) -> tuple[str, str] | None:
    """Route that `path` ends with, the longest if there are several; else the most similar one.

    None if no route is similar enough.
    """
    words = _bare(path)
    ends = [pair for pair in routes if _found(words, pair[1])]
    if ends:
        verb, route = max(ends, key=lambda pair: len(_bare(pair[1])))
        return verb, route.replace(MODEL, _named(words, route))
    near = get_close_matches(path, [route for _, route in routes], n=1, cutoff=CLOSE)
    return next((pair for pair in routes if pair[1] in near), None)


def _bare(path: str) -> list[str]:
    """Words of a path without the version, which clients may repeat or omit."""
    return [word for word in path.split("/") if word not in ("", VERSION)]


def _found(words: list[str], route: str) -> bool:
    """True if `words` end with the route; for a route with a model's name, any name may follow."""
    known = _bare(route)
    if MODEL in known:
        return known[0] in words[:-1]
    return words[-len(known) :] == known


def _named(words: list[str], route: str) -> str:
    """Model's name at the end of the path, slashes included; empty if the route names no model."""
    return "/".join(words[words.index(_bare(route)[0]) + 1 :]) if MODEL in route else ""


def _why(path: str, route: str) -> str:
    more = path.split("/").count(VERSION) - route.split("/").count(VERSION)
    if more:
        words = f"has /{VERSION} once too often" if more > 0 else f"lacks /{VERSION}"
        return f" (the client's base URL {words})"
    return ""
