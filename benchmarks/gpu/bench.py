"""Equipment of a row: the device, its sizes, and a way to make the GPU busy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.rows import Skipped
from mirage.streaming.compute import Compute, StreamCompute
from mirage.streaming.transfer import LayerFrame, LayerStreamer
from vmm.cuda import CudaDriver
from vmm.driver import Stream
from vmm.host import HostBuffer, host_buffer
from vmm.pages import PagePool
from vmm.space import Range

if TYPE_CHECKING:
    import torch

MIB = 1 << 20
NO_LIMIT_S = 300.0
"""Seconds that a row may take without a watchdog, as in a test."""
MARGIN_S = 5.0
"""Seconds that a row keeps after the time limit of what it runs, so that it can report what hung.
"""
CHUNK = 128 * MIB
"""Default of `device.copy_chunk` in bytes, repeated here because its module imports packages that
these rows lack.
"""
CGROUP = Path("/sys/fs/cgroup")
HIDDEN = 5120
LAYERS, SPARE, FEWEST = 40, 4, 8
MATRICES = 12
"""Matrices of HIDDEN x HIDDEN in bfloat16: one layer of OPT-13b, 600 MiB (630 MB)."""


@dataclass(frozen=True)
class Bench:
    """A machine under test. `dry` runs everything except kernels in a small size, over the stand-in
    for the driver.
    """

    dry: bool
    open: Callable[..., CudaDriver]
    device: str = ""
    """Name of a dry device, by which other processes find the same one."""
    end: float | None = None
    """Time on the monotonic clock at which the watchdog ends the row; None if there is no
    watchdog."""

    @property
    def layer_bytes(self) -> int:
        return 6 * MIB if self.dry else MATRICES * HIDDEN * HIDDEN * 2

    def layers(self, driver: CudaDriver) -> int:
        """Number of layers: those of OPT-13b, or as many as fit into the device and half of the
        host.
        """
        if self.dry:
            return 6
        on_device = driver.memory_info()[0] // self.layer_bytes - SPARE
        return max(0, min(LAYERS, on_device, _available_bytes() // 2 // self.layer_bytes))

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in rows that do not compare page sizes."""
        return 2 * MIB if self.dry else 8 * MIB

    @property
    def rounds(self) -> int:
        return 3 if self.dry else 15

    def share(self, runs: int = 1) -> float:
        """Seconds of the row's time that the next of `runs` runs may take."""
        if self.end is None:
            return NO_LIMIT_S
        return max(0.0, self.end - time.monotonic() - MARGIN_S) / runs

    def need_kernels(self) -> None:
        if self.dry:
            raise Skipped("needs kernels, and the stand-in has none")


def real() -> Bench:
    """Bench on the GPU of this machine."""
    return Bench(dry=False, open=CudaDriver)


def dry(device: str | None = None, memory_bytes: int = 512 * MIB) -> Bench:
    """Bench on the tests' stand-in for NVIDIA's driver library. `device` is the shared file of
    another process's device; without it a new device is made.
    """
    from tests.vmm.libcuda import StandIn

    standin = StandIn.load()
    standin.reset(memory_bytes=memory_bytes, granularity=2 * MIB)
    if device is None:  # open for as long as this process lives
        device = f"/proc/{os.getpid()}/fd/{os.memfd_create('mirage-device')}"
    standin.flags(devices=2)
    standin.share(device)

    def opened(*args: object, **kwargs: object) -> CudaDriver:
        return CudaDriver(*args, tensors_on="cpu", **kwargs)  # type: ignore[arg-type]

    return Bench(dry=True, open=opened, device=device)


@dataclass
class Model:
    """Decoder layers at fixed addresses with masters in locked host memory."""

    driver: CudaDriver
    pool: PagePool
    streamer: LayerStreamer
    masters: list[HostBuffer]
    stream: Stream
    """Stream that computes."""

    @property
    def layers(self) -> list[LayerFrame]:
        return self.streamer.layers

    def weights(self, index: int) -> torch.Tensor:
        """Weights of one layer, at their constant address."""
        import torch

        layer = self.layers[index]
        flat = layer.range.tensor(0, layer.nbytes)
        return flat.view(torch.bfloat16).view(MATRICES, HIDDEN, HIDDEN)


@contextmanager
def model(
    bench: Bench, layers: int | None = None, chunk_bytes: int | None = CHUNK
) -> Iterator[Model]:
    """Context of a model whose layer i has i + 1 in every byte of its master and of its range. On a
    GPU, raises `Skipped` if `layers` is not given and fewer than `FEWEST` fit.
    """
    driver = bench.open(bench.page_bytes)
    frame = -(-bench.layer_bytes // driver.page_bytes) * driver.page_bytes
    count = layers or bench.layers(driver)
    if count < FEWEST and not layers and not bench.dry:
        driver.close()
        raise Skipped(f"only {count} layers of 600 MiB fit into the device and the host")
    pool = PagePool(driver, (count + 2) * frame)
    stream = _computing(bench, driver)
    compute: Compute = StreamCompute(lambda: stream, driver.synchronize, driver.event)
    homes, masters = [], []
    try:
        for index in range(count):
            master = host_buffer(bench.layer_bytes)
            masters.append(master)
            driver.pin(master.address, bench.layer_bytes)
            master.tensor().fill_(index + 1)
            home = Range(driver, frame)
            home.back(0, pool.take(frame // driver.page_bytes, "layer"))
            driver.copy(home.address, master.address, bench.layer_bytes)
            homes.append(LayerFrame(index, home, master.address, bench.layer_bytes, driver.event()))
        streamer = LayerStreamer(driver, pool, homes, compute, chunk_bytes=chunk_bytes)
        yield Model(driver, pool, streamer, masters, stream)
    finally:
        driver.close()  # when all that was enqueued has run
        for master in masters:
            master.close()


def _available_bytes() -> int:
    """Bytes of available host memory, within a container's limit."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith("MemAvailable:")]
    limit = _number(CGROUP / "memory.max")
    left = limit - (_number(CGROUP / "memory.current") or 0) if limit else None
    available = int(line.split()[1]) * 1024
    return available if left is None else min(available, left)


def _number(file: Path) -> int | None:
    """Number in a file; None if there is no file, or if its text is "max"."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _computing(bench: Bench, driver: CudaDriver) -> Stream:
    if bench.dry:
        return driver.stream()
    import torch

    return driver.adopt(torch.cuda.current_stream().cuda_stream)
