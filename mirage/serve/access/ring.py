"""Key and right of a request, by its headers and the table of keys. Pure.

A key is found in a dictionary, by the SHA-256 of its token. The time that this takes tells nothing
of a token: a dictionary compares two texts only if their salted hashes are equal, and who knew the
SHA-256 of a random token would not know the token. A thousand keys take no longer than one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import Enum, auto
from hashlib import sha256

from mirage.serve.access.forms import AccessKey, AccessTable
from mirage.serve.openai import ApiError
from mirage.serve.overview.page import PAGE_ROUTE
from mirage.serve.routes import OTHERS, ROUTES, RouteWay

BARE = frozenset({"/live", "/ready", PAGE_ROUTE})
"""Routes that ask for no key. The page tells nothing before its script has one."""
OF_MODELS = frozenset(
    {"/v1/models", "/v1/models/{model}", "/openapi.json"}
    | {path for path, decision in ROUTES.items() if decision.way is not RouteWay.OWN}
    | OTHERS.keys()
)
"""Routes that any key opens, with those that are refused."""
METRICS = "/metrics"
HOW = "send Authorization: Bearer KEY, or x-api-key: KEY"


class Need(Enum):
    """Right that a route needs."""

    NOTHING = auto()
    ANY_KEY = auto()
    METRICS = auto()
    ADMIN = auto()


class KeyRefused(ApiError):
    """A request without a key that holds: 401."""

    def __init__(self, message: str, code: str = "invalid_api_key") -> None:
        super().__init__(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})


def need_of(route: str | None) -> Need:
    """Right that a registered `route` needs; None is an unknown path.

    Routes without an entry need an operator's.
    """
    if route in BARE:
        return Need.NOTHING
    if route is None or route in OF_MODELS:
        return Need.ANY_KEY
    return Need.METRICS if route == METRICS else Need.ADMIN


def digest(token: str) -> str:
    """Hash by which a token is known."""
    return sha256(token.encode(errors="surrogateescape")).hexdigest()


def may_use(key: AccessKey | None, tenant: str, model: str) -> bool:
    """True if a key opens `model`, a tenant's own name, an alias or that of an adapter of it."""
    return key is None or key.models is None or tenant in key.models or model in key.models


class KeyRing:
    """The keys of one table."""

    def __init__(self, table: AccessTable) -> None:
        self.asks = table.keys is not None
        self._keys = {key.sha256: key for key in table.keys or ()}

    def admitted(
        self, headers: Iterable[tuple[str, str]], need: Need, now: float
    ) -> AccessKey | None:
        """Key of a request; None where none is asked for. `now` is in seconds since 1970.

        Raises `ApiError`: 401 without a key that holds, 403 with one that does not open it.
        """
        if not self.asks or need is Need.NOTHING:
            return None
        key = self._known(headers)
        if key.expires is not None and key.expires <= now:
            raise KeyRefused(
                f"this API key has expired at {date_of(key.expires)}: use another one",
                code="expired_api_key",
            )
        if need is Need.ADMIN and not key.admin:
            raise ApiError(403, "this is an operator's: use a key with admin: true")
        if need is Need.METRICS and not (key.metrics or key.admin):
            raise ApiError(403, "this is not for users: use a key with metrics: true")
        return key

    def _known(self, headers: Iterable[tuple[str, str]]) -> AccessKey:
        sent = _sent(headers)
        if not sent:
            raise KeyRefused(f"no API key was sent: {HOW}", code="missing_api_key")
        if len(sent) > 1:
            raise KeyRefused("different credentials were sent: send one key")
        if (token := sent.pop()) is None:
            raise KeyRefused(f"Authorization is no bearer token: {HOW}")
        if (key := self._keys.get(digest(token))) is None:
            raise KeyRefused("this API key is not known here: use another one")
        return key


def date_of(seconds: float) -> str:
    """A time since 1970 as RFC 3339 writes it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _sent(headers: Iterable[tuple[str, str]]) -> set[str | None]:
    """Different credentials; None stands for those of other schemes."""
    found: set[str | None] = set()
    for name, value in headers:
        match name.lower():
            case "authorization":
                scheme, _, token = value.strip().partition(" ")
                found.add(token.strip() if scheme.lower() in ("bearer", "") else None)
            case "x-api-key":
                found.add(value.strip())
    return found - {""}
