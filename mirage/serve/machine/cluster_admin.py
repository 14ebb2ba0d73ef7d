"""HTTP for operators of a cluster, on the machine of its controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web

from mirage.machines.seam import StaleEpoch
from mirage.serve.admin.declaring import Declaring
from mirage.serve.api.openai import ApiError, Handler
from mirage.serve.machine.admin import MachineAdmin
from mirage.serve.machine.cluster_applying import ClusterApplier
from mirage.serve.machine.cluster_controller import ClusterController


class ClusterAdmin(MachineAdmin):
    """Admin routes over the devices of all machines, as `MachineAdmin` has them for one machine."""

    def __init__(self, controller: ClusterController, applier: ClusterApplier) -> None:
        super().__init__(
            controller.calls,
            Declaring(applier),
            controller.book,
            applier.plan.common.policy,
            applier.keys,
        )

    async def start(self, path: Path, url: str = "") -> None:
        """Listen at `path`, in place of an older controller. Raises `OSError` if that fails."""
        path.unlink(missing_ok=True)  # an older controller's, which ends
        await super().start(path, url)

    def middlewares(self) -> list[Any]:
        """Middlewares of `MachineAdmin`, and one that answers with 409 once another controller
        serves the cluster."""
        return [*super().middlewares(), _older]


@web.middleware
async def _older(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except StaleEpoch:
        raise ApiError(409, "another controller serves this cluster: ask at its socket") from None
