"""HTTP for operators of a cluster, on the machine of its controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web

from mirage.machines.seam import StaleEpoch
from mirage.serve.admin.declaring import Declaring
from mirage.serve.machine.admin import MachineAdmin
from mirage.serve.machine.cluster_applying import ClusterApplier
from mirage.serve.machine.cluster_controller import ClusterController
from mirage.serve.openai import ApiError, Handler


class ClusterAdmin(MachineAdmin):
    """Admin routes over the devices of all machines, but those of a device's own socket."""

    def __init__(self, controller: ClusterController, applier: ClusterApplier) -> None:
        super().__init__(
            {name: one.calls for name, one in controller.devices.items()},
            Declaring(applier),
            controller.book,
            applier.plan.common.policy,
            applier.keys,
        )

    async def start(self, path: Path, url: str = "") -> None:
        """Listen at `path`. Raises `OSError`."""
        path.unlink(missing_ok=True)  # an older controller's, which ends
        await super().start(path, url)

    def middlewares(self) -> list[Any]:
        """See `MachineAdmin`."""
        return [*super().middlewares(), _older]


@web.middleware
async def _older(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except StaleEpoch:
        raise ApiError(409, "another controller serves this cluster: ask at its socket") from None
