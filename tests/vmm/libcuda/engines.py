"""Engines that compute on the host, in memory of the GPU's driver over the stand-in."""

from __future__ import annotations

from mirage.engine.backend import Backend, computed_by_host
from mirage.engine.settings import EngineSettings
from mirage.transfer import HostCompute
from tests.vmm.libcuda import StandIn


def over_standin(
    settings: EngineSettings, memory_bytes: int, shared_device: str | None = None
) -> Backend:
    """A fresh device of so many bytes for one engine; for several, that of the shared file."""
    standin = StandIn.load()
    standin.reset(memory_bytes, granularity=settings.page)
    if shared_device is not None:
        standin.share(shared_device)
    from vmm.cuda import CudaDriver  # loads the library by name, so not before

    return computed_by_host(CudaDriver(settings.page, tensors_on="cpu"), HostCompute())
