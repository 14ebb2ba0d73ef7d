"""Addresses of replicas: each has the API of one vLLM server, for a gateway in front.

The address is a path, ``/replicas/DEVICE/MODEL``, followed by vLLM's routes. A request to it is
turned into one to the plain route before it is handled, so that keys, limits and digests of bodies
are the same as at the server's own address.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import unquote

from aiohttp import web
from aiohttp.http import RawRequestMessage
from yarl import URL

from mirage.serve.api.routes import ROUTES, RouteWay
from mirage.serve.routed.tenants import RoutedTenant

PREFIX = "/replicas/"
ONLY = "device"
"""Name for the device in these addresses if the server has only one."""
HEALTH = "/health"
OF_REPLICAS = frozenset(
    {HEALTH, "/metrics", "/v1/models", "/v1/models/{model}"}
    | {path for path, decision in ROUTES.items() if decision.way is not RouteWay.OWN}
)
"""Routes that each replica's address has."""


class ReplicaAddress(NamedTuple):
    """Device and tenant in the address that a request was sent to."""

    device: str
    tenant: str

    def is_of(self, one: RoutedTenant) -> bool:
        """True if this is the address of the replica `one`."""
        return self.tenant == one.name and self.device == (one.device or ONLY)


REPLICA = web.RequestKey("mirage_replica", ReplicaAddress)
"""Key under which a request carries the replica's address that it was sent to."""


def parted(target: str) -> tuple[ReplicaAddress, str] | None:
    """Address in a request's target, which begins with `PREFIX`, and the rest of the target.

    None if the target is no such address. A slash in a name is written ``%2F``.
    """
    device, _, rest = target.removeprefix(PREFIX).partition("/")
    tenant, _, route = rest.partition("/")
    if not device or not tenant or not route:
        return None
    return ReplicaAddress(unquote(device), unquote(tenant)), f"/{route}"


def addressed(make: Any, message: RawRequestMessage, *more: Any) -> web.BaseRequest:
    """Request that `make` creates from a message; one to a replica's address carries `REPLICA`.

    Its target is then the plain route.
    """
    parts = parted(message.path) if message.path.startswith(PREFIX) else None
    if parts is None:
        made: web.BaseRequest = make(message, *more)
        return made
    address, target = parts
    path, _, query = target.partition("?")
    url = URL.build(path=path, query_string=query, encoded=True)
    made = make(message._replace(path=target, url=url), *more)
    made[REPLICA] = address
    return made


def is_probe(request: web.Request) -> bool:
    """True for a question about a replica's health, which needs no key, as with vLLM."""
    return REPLICA in request and request.path == HEALTH


def check_route(request: web.Request) -> None:
    """Raise `web.HTTPNotFound` if the request is to a replica, which does not have this route."""
    resource = request.match_info.route.resource
    if REPLICA in request and (resource is None or resource.canonical not in OF_REPLICAS):
        raise web.HTTPNotFound
