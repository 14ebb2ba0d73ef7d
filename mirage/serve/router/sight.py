"""Access of a request to parts of the server, by its key, origin and address: the replicas that it
may use, and the reasons of states, if its client may be told them.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from mirage.serve.api.openai import ApiError
from mirage.serve.ends.comeback import LOOK_AGAIN_S
from mirage.serve.http.local_request import why_far
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.gate import AccessGate
from mirage.serve.router.replica_address import REPLICA, ReplicaAddress


class RequestSight:
    """Decides what a request may see, by its key, its origin and its address."""

    def __init__(self, tenants: RoutedDevices, gate: AccessGate) -> None:
        self._tenants, self._gate = tenants, gate
        self._host = tenants.first.welcome.host

    def replicas(self, request: web.Request, name: str) -> Sequence[RoutedTenant]:
        """Tenants of model `name` that a request may use, those that can serve immediately first.

        At the address of a replica only that one is returned. Raises `ApiError` if there is none.
        """
        address = request.get(REPLICA)
        found = self._tenants.serving(name)
        if found and self._gate.opens(request, found[0].row, name):
            if address is None:
                return found
            if here := [one for one in found if address.is_of(one)]:
                return here
            if address.tenant == found[0].name:
                raise _not_there(name, address)
        if away := self._tenants.away(name):
            message = (
                f"model {name!r} is not served now: device {away[0]!r} is away, starts or ends"
            )
            raise ApiError(503, message, param="model", code="device_away", wait_s=LOOK_AGAIN_S)
        known = ", ".join(map(repr, self.models(request))) or "none"
        message = f"no model {name!r} here: use one of {known}"
        raise ApiError(404, message, param="model", code="model_not_found")

    def served(self, request: web.Request) -> list[RoutedTenant]:
        """Tenants that are served, also those that the request's key may not use; at a replica's
        address only that replica."""
        address = request.get(REPLICA)
        served = self._tenants.served
        return served if address is None else [one for one in served if address.is_of(one)]

    def models(self, request: web.Request) -> list[str]:
        """Names of models that a request may use, each once."""
        opened = [
            name
            for one in self.served(request)
            for name in one.row.names
            if self._gate.opens(request, one.row, name)
        ]
        return list(dict.fromkeys(opened))

    def is_near(self, request: web.Request) -> bool:
        """True if the request may see reasons, which are lines of logs and contain paths."""
        far = why_far(request.remote, request.headers, self._host, request.version)
        return far is None or self._gate.is_admin(request)


def _not_there(name: str, address: ReplicaAddress) -> ApiError:
    message = f"model {name!r} is not on device {address.device!r} now: ask another replica"
    return ApiError(503, message, param="model", code="replica_away", wait_s=LOOK_AGAIN_S)
