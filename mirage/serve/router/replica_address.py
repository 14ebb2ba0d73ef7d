"""Addresses of replicas: each has the API of one vLLM server, for a router or gateway in front.

The address is a path, ``/replicas/DEVICE/MODEL``, and behind it come vLLM's routes. A request to it
is made one to the route itself before anybody looks at it, so keys, limits and fingerprints are
those of the server's own address.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import unquote

from aiohttp import web
from aiohttp.http import RawRequestMessage
from yarl import URL

from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.routes import ROUTES, RouteWay

PREFIX = "/replicas/"
ONLY = "device"
"""Name of the device of a server that has one."""
HEALTH = "/health"
OF_REPLICAS = frozenset(
    {HEALTH, "/metrics", "/v1/models", "/v1/models/{model}"}
    | {path for path, decision in ROUTES.items() if decision.way is not RouteWay.OWN}
)
"""Routes that a replica has."""


class ReplicaAddress(NamedTuple):
    """Device and tenant that a request is for."""

    device: str
    tenant: str

    def is_of(self, one: RoutedTenant) -> bool:
        """True if this is the address of `one`."""
        return self.tenant == one.name and self.device == (one.device or ONLY)


REPLICA = web.RequestKey("mirage_replica", ReplicaAddress)
"""Key of the address in a request that came by one."""


def parted(target: str) -> tuple[ReplicaAddress, str] | None:
    """Address and the rest of a request's target, which begins with `PREFIX`; None of no address.

    A slash in a name is written ``%2F``.
    """
    device, _, rest = target.removeprefix(PREFIX).partition("/")
    tenant, _, route = rest.partition("/")
    if not device or not tenant or not route:
        return None
    return ReplicaAddress(unquote(device), unquote(tenant)), f"/{route}"


def addressed(make: Any, message: RawRequestMessage, *more: Any) -> web.BaseRequest:
    """Request that `make` makes of a message, with `REPLICA` if it came to such an address."""
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
    """True of a question for the health of a replica: like vLLM's, it asks for no key."""
    return REPLICA in request and request.path == HEALTH


def check_route(request: web.Request) -> None:
    """Raises `web.HTTPNotFound` for a route that a replica has not."""
    resource = request.match_info.route.resource
    if REPLICA in request and (resource is None or resource.canonical not in OF_REPLICAS):
        raise web.HTTPNotFound
