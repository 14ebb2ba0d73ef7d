"""Engines that compute on the host, with memory of the driver's stand-in.

They have what an engine on a GPU has: our backend for GPUs, which adopts torch's stream, lets it
wait for copies, and times steps with torch's events. Only tensors are the host's. If a stream
waits, the thread waits too, since the thread computes.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from mirage.engine import backend
from mirage.engine_settings import EngineSettings
from tests.vmm.libcuda import StandIn

THEIRS = backend._cuda
"""Before a test puts something else in its place."""


def over_standin(
    settings: EngineSettings, memory_bytes: int, shared_device: str | None = None
) -> backend.Backend:
    """Backend of an engine with a new device of `memory_bytes`, or with the device of the shared
    file, which several engines share.
    """
    standin = StandIn.load()
    standin.reset(memory_bytes, granularity=settings.page)
    if shared_device is not None:
        standin.flags(devices=2)
        standin.share(shared_device)
    from tests.vmm.libcuda.torchs import TorchCuda  # loads the library by name, so not before
    from vmm import cuda

    theirs = TorchCuda()
    backend.torch = SimpleNamespace(cuda=theirs)  # type: ignore[assignment]
    driver, cuda.CudaDriver = cuda.CudaDriver, partial(cuda.CudaDriver, tensors_on="cpu")  # type: ignore[assignment, misc]
    try:
        made = THEIRS(settings)
    finally:
        cuda.CudaDriver = driver  # type: ignore[misc]
    _wait_in_thread(made, theirs)
    return made


def _wait_in_thread(made: backend.Backend, theirs: object) -> None:
    enqueue = made.compute.wait

    def wait(event: object) -> None:
        enqueue(event)  # type: ignore[arg-type]
        theirs.current_stream().synchronize()  # type: ignore[attr-defined]

    made.compute.wait = wait  # type: ignore[method-assign]
