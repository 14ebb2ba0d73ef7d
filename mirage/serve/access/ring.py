"""Key of a request, found by its headers, and check of its rights. Pure.

A key is found in a dictionary, by the SHA-256 of its token. The time of the search reveals nothing
of a token: a dictionary compares texts only if their salted hashes are equal, and the SHA-256 of a
random token does not reveal the token. The search takes the same time with a thousand keys as with
one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import Enum, auto
from hashlib import sha256

from mirage.serve.access.forms import AccessKey, AccessTable
from mirage.serve.api.openai import ApiError
from mirage.serve.api.routes import OTHERS, ROUTES, RouteWay
from mirage.serve.overview.page import PAGE_ROUTE

BARE = frozenset({"/live", "/ready", PAGE_ROUTE})
"""Routes that need no key. The page shows nothing until its script has one."""
OF_MODELS = frozenset(
    {"/v1/models", "/v1/models/{model}", "/openapi.json"}
    | {path for path, decision in ROUTES.items() if decision.way is not RouteWay.OWN}
    | OTHERS.keys()
)
"""Routes that any key opens; refused routes of vLLM are among them."""
METRICS = "/metrics"
HOW = "send Authorization: Bearer KEY, or x-api-key: KEY"


class Need(Enum):
    """Right that a route needs of a key."""

    NOTHING = auto()
    ANY_KEY = auto()
    METRICS = auto()
    ADMIN = auto()


class KeyRefused(ApiError):
    """Error 401: the request came without a valid key."""

    def __init__(self, message: str, code: str = "invalid_api_key") -> None:
        super().__init__(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})


def need_of(route: str | None) -> Need:
    """Right that a registered `route` needs; None stands for an unknown path.

    A route of this server that is in no list needs an operator's key.
    """
    if route in BARE:
        return Need.NOTHING
    if route is None or route in OF_MODELS:
        return Need.ANY_KEY
    return Need.METRICS if route == METRICS else Need.ADMIN


def digest(token: str) -> str:
    """SHA-256 of a token, by which its key is found."""
    return sha256(token.encode(errors="surrogateescape")).hexdigest()


def may_use(key: AccessKey | None, tenant: str, model: str) -> bool:
    """True if `key` opens `model`: the tenant's name, or one of its aliases or adapters.

    None as `key` stands for a server that asks for no keys.
    """
    return key is None or key.models is None or tenant in key.models or model in key.models


class KeyRing:
    """Keys of one table, by the hashes of their tokens."""

    def __init__(self, table: AccessTable) -> None:
        self.asks = table.keys is not None
        self._keys = {key.sha256: key for key in table.keys or ()}

    def admitted(
        self, headers: Iterable[tuple[str, str]], need: Need, now: float
    ) -> AccessKey | None:
        """Key of a request; None if none is needed. `now` is in seconds since 1970.

        Raises `ApiError`: 401 without a valid key, 403 with a key that lacks the right.
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
    """Time in seconds since 1970 in the form of RFC 3339."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _sent(headers: Iterable[tuple[str, str]]) -> set[str | None]:
    """Different credentials in the headers; None stands for schemes other than bearer tokens."""
    found: set[str | None] = set()
    for name, value in headers:
        match name.lower():
            case "authorization":
                scheme, _, token = value.strip().partition(" ")
                found.add(token.strip() if scheme.lower() in ("bearer", "") else None)
            case "x-api-key":
                found.add(value.strip())
    return found - {""}
