"""Keys and rights of requests, by headers and a table of keys."""

from __future__ import annotations

import msgspec
import pytest

from mirage.serve.access.forms import AccessKey, AccessTable
from mirage.serve.access.rates import RateLimits
from mirage.serve.access.ring import KeyRing, Need, digest, may_use, need_of
from mirage.serve.api.openai import ApiError
from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES

pytestmark = pytest.mark.pure

NOW = 1_800_000_000.0
A = AccessKey("a", digest("token-a"), ("m",), limits=RateLimits(60, 1000, 2))
OLD = AccessKey("old", digest("token-old"), None, expires=NOW)
ROOT = AccessKey("root", digest("token-root"), admin=True)
PROM = AccessKey("prom", digest("token-prom"), metrics=True)
TABLE = AccessTable((A, OLD, ROOT, PROM), 7)


def told(*headers: tuple[str, str], need: Need = Need.ANY_KEY) -> str | tuple[int, str]:
    """Result of a request with these headers: the name of its key, or the status and error code of
    the refusal. No message contains a token.
    """
    try:
        key = KeyRing(TABLE).admitted(headers, need, NOW)
    except ApiError as error:
        assert "token-" not in error.message
        challenge = error.response().headers.get("WWW-Authenticate")
        assert challenge == ("Bearer" if error.status == 401 else None)
        return error.status, str(error.code)
    assert key is not None
    return key.name


BEARER = ("Authorization", "Bearer token-a")
PLAIN = ("X-Api-Key", "token-a")
UNKNOWN = (401, "invalid_api_key")
NONE = (401, "missing_api_key")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], NONE),
        ([("Authorization", "Bearer ")], NONE),
        ([("Authorization", "Bearer")], NONE),
        ([("Authorization", ""), ("x-api-key", " ")], NONE),
        ([BEARER], "a"),
        ([("authorization", "bearer  token-a ")], "a"),
        ([PLAIN], "a"),
        ([("Authorization", "Bearer "), PLAIN], "a"),
        ([BEARER, PLAIN], "a"),
        ([BEARER, BEARER], "a"),
        ([BEARER, ("x-api-key", "token-root")], UNKNOWN),
        ([BEARER, ("x-api-key", "wrong")], UNKNOWN),
        ([BEARER, ("Authorization", "Bearer token-root")], UNKNOWN),
        ([("Authorization", "Basic token-a")], UNKNOWN),
        ([("Authorization", "Basic x"), PLAIN], UNKNOWN),
        ([("Authorization", "token-a")], UNKNOWN),
        ([("x-api-key", "token-A")], UNKNOWN),
        ([("x-api-key", "\udcff\u00e9")], UNKNOWN),
        ([("x-api-key", A.sha256)], UNKNOWN),
        ([("x-api-key", "token-old")], (401, "expired_api_key")),
    ],
)
def test_one_key_comes_with_a_request(
    headers: list[tuple[str, str]], expected: str | tuple[int, str]
) -> None:
    assert told(*headers) == expected


def test_a_key_holds_until_it_expires() -> None:
    ring = KeyRing(TABLE)
    assert ring.admitted([("x-api-key", "token-old")], Need.ANY_KEY, NOW - 0.1) == OLD
    with pytest.raises(ApiError, match="expired at 2027-01-15T08:00:00Z"):
        ring.admitted([("x-api-key", "token-old")], Need.ANY_KEY, NOW)


@pytest.mark.parametrize(
    ("need", "open_to"),
    [
        (Need.ANY_KEY, {"a", "root", "prom"}),
        (Need.METRICS, {"root", "prom"}),
        (Need.ADMIN, {"root"}),
    ],
)
def test_a_right_is_one_that_the_key_names(need: Need, open_to: set[str]) -> None:
    found = {
        name: told(("x-api-key", f"token-{name}"), need=need) for name in ("a", "root", "prom")
    }
    assert found == {name: name if name in open_to else (403, "None") for name in found}


def test_nobody_is_asked_without_a_table_or_where_a_route_is_bare() -> None:
    assert KeyRing(AccessTable()).admitted([], Need.ADMIN, NOW) is None
    assert KeyRing(TABLE).admitted([], Need.NOTHING, NOW) is None
    with pytest.raises(ApiError):
        KeyRing(AccessTable(())).admitted([], Need.ANY_KEY, NOW)


def test_a_route_that_nobody_has_thought_of_is_an_operators() -> None:
    assert {need_of(route) for route in ("/live", "/ready", "/mirage")} == {Need.NOTHING}
    models = (*JSON_ROUTES, *FORM_ROUTES, "/v1/models", "/v1/models/{model}", None)
    assert {need_of(route) for route in models} == {Need.ANY_KEY}
    assert need_of("/metrics") is Need.METRICS
    own = ("/mirage/state", "/mirage/overview", "/mirage/tiers")
    others = ("/health", "/health/{model}", *own, "/live2", "/new")
    assert {need_of(route) for route in others} == {Need.ADMIN}


def test_a_key_opens_tenants_with_their_adapters_or_single_adapters() -> None:
    one = AccessKey("k", "", ("tenant", "lora"))
    assert may_use(one, "tenant", "tenant") and may_use(one, "tenant", "any-adapter")
    assert may_use(one, "other", "lora") and not may_use(one, "other", "other")
    assert may_use(None, "x", "x") and may_use(OLD, "x", "x") and not may_use(ROOT, "x", "x")


def test_a_table_can_be_sent() -> None:
    for code in (msgspec.json, msgspec.msgpack):
        assert code.decode(code.encode(TABLE), type=AccessTable) == TABLE
