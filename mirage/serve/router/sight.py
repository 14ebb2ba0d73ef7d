"""Part of the server that a request may see: the replicas of a model, and reasons of states."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from mirage.serve.ends.comeback import LOOK_AGAIN_S
from mirage.serve.near import why_far
from mirage.serve.openai import ApiError
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.gate import AccessGate
from mirage.serve.router.replica_address import REPLICA, ReplicaAddress


class RequestSight:
    """Sight of requests, by their keys and by where they come from."""

    def __init__(self, tenants: RoutedDevices, gate: AccessGate) -> None:
        self._tenants, self._gate = tenants, gate
        self._host = tenants.first.welcome.host

    def replicas(self, request: web.Request, name: str) -> Sequence[RoutedTenant]:
        """Tenants of a model that a request may use, awake ones first.

        Raises `ApiError`. At the address of a replica only that replica may be used.
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
        if away := self._tenants.unknown:
            message = f"model {name!r} is not known yet: device {away[0]!r} is away or starts"
            raise ApiError(503, message, param="model", code="device_away", wait_s=LOOK_AGAIN_S)
        known = ", ".join(map(repr, self.models(request))) or "none"
        message = f"no model {name!r} here: use one of {known}"
        raise ApiError(404, message, param="model", code="model_not_found")

    def served(self, request: web.Request) -> list[RoutedTenant]:
        """All tenants, or that of the replica whose address was asked."""
        address = request.get(REPLICA)
        served = self._tenants.served
        return served if address is None else [one for one in served if address.is_of(one)]

    def models(self, request: web.Request) -> list[str]:
        """All names that a request may use."""
        opened = [
            name
            for one in self.served(request)
            for name in one.row.names
            if self._gate.opens(request, one.row, name)
        ]
        return list(dict.fromkeys(opened))

    def is_near(self, request: web.Request) -> bool:
        """True if it may be told reasons, which are lines of logs and have paths in them."""
        far = why_far(request.remote, request.headers, self._host, request.version)
        return far is None or self._gate.is_admin(request)


def _not_there(name: str, address: ReplicaAddress) -> ApiError:
    message = f"model {name!r} is not on device {address.device!r} now: ask another replica"
    return ApiError(503, message, param="model", code="replica_away", wait_s=LOOK_AGAIN_S)
