"""Pages of other origins: which may ask for models, and the headers by which browsers know.

Keys come in headers that a page sets itself. Cookies and what else a browser adds by itself are
never allowed, so that a page has no more rights than its own key. An operator's routes stay closed.
"""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import web

from mirage.serve.routes import FORM_ROUTES, JSON_ROUTES

ANY = "*"
MODELS = "/v1/models"
ROUTES = frozenset({MODELS, *JSON_ROUTES, *FORM_ROUTES})
EXPOSED = "Retry-After, X-Request-Id"
MAX_AGE_S = 600
"""Seconds for which a browser need not ask again whether it may."""
ASKED_METHOD = "Access-Control-Request-Method"
ASKED_HEADERS = "Access-Control-Request-Headers"


class CrossOrigins:
    """Origins that may ask; none by default."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def preflight(self, request: web.Request) -> web.Response | None:
        """Answer to a browser that asks whether a page may; it sends no key with that."""
        if request.method == "OPTIONS" and ASKED_METHOD in request.headers and self._lets(request):
            return web.Response(status=204)
        return None

    async def tells(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers to an answer before it is sent, also to one that streams."""
        if not _of_models(request.path):
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
