"""Requests from web pages of other origins: the routes that they may use, and headers for browsers.

Pages send keys in headers that they set themselves. Cookies and other credentials that browsers add
are never allowed, so a page has only the rights of its own key. Operators' routes stay closed.
"""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import web

from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES

ANY = "*"
MODELS = "/v1/models"
ROUTES = frozenset({MODELS, *JSON_ROUTES, *FORM_ROUTES})
EXPOSED = "Retry-After, X-Request-Id"
MAX_AGE_S = 600
"""Seconds for which a browser may remember the answer to a preflight request."""
ASKED_METHOD = "Access-Control-Request-Method"
ASKED_HEADERS = "Access-Control-Request-Headers"


class CrossOrigins:
    """Origins whose pages may send requests; none by default."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def becomes(self, origins: Collection[str]) -> None:
        """Replace the allowed origins from now on."""
        self._origins = frozenset(origins)

    def preflight(self, request: web.Request) -> web.Response | None:
        """Answer to a browser's preflight request, which has no key; None if the origin or route is
        not allowed, or the request is no preflight request.
        """
        if request.method == "OPTIONS" and ASKED_METHOD in request.headers and self._lets(request):
            return web.Response(status=204)
        return None

    async def tells(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers for browsers to an answer, whole or streamed, before it is sent. Only
        answers to pages of allowed origins get more than ``Vary``.
        """
        if not self._origins or not _of_models(request.path):
            return
        response.headers.add("Vary", "Origin")
        if not self._lets(request):
            return
        response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
        response.headers["Access-Control-Expose-Headers"] = EXPOSED
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = "GET, POST"
            response.headers["Access-Control-Allow-Headers"] = request.headers.get(
                ASKED_HEADERS, "Content-Type, Authorization, X-Api-Key"
            )
            response.headers["Access-Control-Max-Age"] = str(MAX_AGE_S)

    def _lets(self, request: web.Request) -> bool:
        origin = request.headers.get("Origin", "")
        allowed = origin in self._origins or (bool(origin) and ANY in self._origins)
        return allowed and _of_models(request.path)


def _of_models(path: str) -> bool:
    return path in ROUTES or path.startswith(f"{MODELS}/")
