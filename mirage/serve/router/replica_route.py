"""Way of one request over the replicas of its model: the first that gets it, and later ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from mirage.control.routes.routing import RequestFate, RouteAsk, RouteChoice, RouteRefused
from mirage.serve.api.openai import ReplicaCannot
from mirage.serve.ends.suspects import SuspectRefusal
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.forward import HasOthers
from mirage.serve.router.refusals import suspect_refused


class SendsToReplica(Protocol):
    """Function that sends the request to one replica."""

    async def __call__(self, tenant: RoutedTenant, *, others: HasOthers) -> web.StreamResponse:
        """Return the replica's answer; `others` tells if another one may be sent the request.

        Raises `ReplicaCannot` if another replica may answer, and `ApiError` for other refusals.
        """


class ReplicaRoute:
    """One request to a model with several replicas."""

    def __init__(
        self,
        devices: RoutedDevices,
        replicas: Sequence[RoutedTenant],
        model: str,
        body_digest: str,
        affinity: str,
    ) -> None:
        """`model` is the name in the request; `replicas` are the tenants that serve it."""
        self._devices, self._model = devices, model
        self._replicas = {one.device: one for one in replicas}
        self._ask = RouteAsk(replicas[0].name, body_digest, affinity)

    async def answer(self, sends: SendsToReplica) -> web.StreamResponse:
        """Send the request to one replica after the other until one answers. Raises the `ApiError`
        of the last replica that was asked, or one that refuses the request at all replicas.
        """
        tenant = self._first()
        while True:
            self._ask = self._ask._replace(tried=self._ask.tried | {tenant.device})
            try:
                return await sends(tenant, others=self._has_others)
            except ReplicaCannot as cannot:
                if (following := self._following(cannot.fate)) is None:
                    raise
                self._devices.rerouted[tenant.name, cannot.fate] += 1
            tenant = following

    def _first(self) -> RoutedTenant:
        """Replica that gets the request first. Raises `ApiError` if it must not be sent to any.

        If none can serve, any of them is returned, whose server tells the reason.
        """
        choice = self._chosen()
        if choice.replica is not None:
            return self._replicas[choice.replica.device]
        if choice.refused is RouteRefused.NO_REPLICA:
            return next(iter(self._replicas.values()))  # its server says why it cannot
        known = choice.refused is RouteRefused.CULPRIT
        raise suspect_refused(self._model, SuspectRefusal(choice.wait_s, known))

    def _has_others(self) -> bool:
        return self._following(RequestFate.UNREAD) is not None

    def _following(self, fate: RequestFate) -> RoutedTenant | None:
        """Replica that gets the request after one with result `fate`; None if none may."""
        now = time.monotonic()
        if not self._devices.routes.may_retry(self._ask, fate, now, begun=False):
            return None
        replica = self._chosen().replica
        return None if replica is None else self._replicas[replica.device]

    def _chosen(self) -> RouteChoice:
        now = time.monotonic()
        replicas = [self._devices.replica(one, now) for one in self._replicas.values()]
        return self._devices.routes.choose(self._ask, replicas, now)
