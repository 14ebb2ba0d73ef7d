"""Price of each call of the driver that moves memory: idle, and beside kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from cuda.bindings import driver as cu

from benchmarks.gpu.bench import HIDDEN, Bench, Model, model
from benchmarks.gpu.rows import Row, median, ms, timed
from vmm.cuda import CudaDriver
from vmm.cuda_calls import call
from vmm.cuda_device import access, allocation
from vmm.host import host_buffer

CALLS = ("create", "map", "set access", "unmap", "release", "register", "unregister")
BUSY_S = 0.02
"""Seconds of kernels under way while the calls are made: longer than those should take."""


def of_calls(bench: Bench) -> Row:
    """Row on the microseconds of each driver call for one page, and on how much longer kernels take
    that run meanwhile.
    """
    with model(bench, layers=2) as made:
        alone = [_round(made.driver) for _ in range(bench.rounds)]
        busy = _work(made, bench)
        kernels_s = median([timed(lambda: _through(busy)) for _ in range(5)])
        beside, spans = [], []
        for _ in range(bench.rounds):
            spans.append(timed(lambda: beside.append(_beside(made.driver, busy))))
    each = {name: _both(name, alone, beside) for name in CALLS}
    longer = median(spans) / kernels_s
    return Row(
        "prices of calls",
        f"a call of the driver for a page of {bench.page_bytes >> 20} MiB, idle and beside kernels",
        ", ".join(f"{name} {one[0]:.0f} and {one[1]:.0f} us" for name, one in each.items())
        + f"; the kernels {longer:.2f}x as long ({ms(kernels_s)} alone)",
        details={"us": each, "kernels_longer": longer, "kernels_s": kernels_s},
    )


def _both(
    name: str, alone: list[dict[str, float]], beside: list[dict[str, float]]
) -> tuple[float, float]:
    """Median microseconds of one call, without and with kernels beside it."""
    idle, busy = (median([one[name] for one in rounds]) * 1e6 for rounds in (alone, beside))
    return idle, busy


def _round(driver: CudaDriver) -> dict[str, float]:
    """Seconds of each call in one round, with the driver library called directly."""
    took, nbytes = {}, driver.page_bytes
    wanted = allocation(0)
    with driver.opened(), closing(host_buffer(nbytes)) as buffer, _addresses(nbytes) as place:
        handle: list[Any] = []
        calls: dict[str, Callable[[], Any]] = {
            "create": lambda: handle.append(call(cu.cuMemCreate, nbytes, wanted, 0)),
            "map": lambda: call(cu.cuMemMap, place, nbytes, 0, handle[0], 0),
            "set access": lambda: call(
                cu.cuMemSetAccess, place, nbytes, [access(wanted.location)], 1
            ),
            "unmap": lambda: call(cu.cuMemUnmap, place, nbytes),
            "release": lambda: call(cu.cuMemRelease, handle[0]),
            "register": lambda: call(
                cu.cuMemHostRegister, buffer.address, nbytes, cu.CU_MEMHOSTREGISTER_PORTABLE
            ),
            "unregister": lambda: call(cu.cuMemHostUnregister, buffer.address),
        }
        for name in CALLS:
            took[name] = timed(calls[name])
    return took


@contextmanager
def _addresses(nbytes: int) -> Iterator[int]:
    """Context of a reserved address range without memory; gives its first address."""
    place = call(cu.cuMemAddressReserve, nbytes, 0, 0, 0)
    try:
        yield int(place)
    finally:
        call(cu.cuMemAddressFree, place, nbytes)


Work = tuple[Callable[[], None], Callable[[], None]]
"""Function that enqueues some work, and function that waits for it."""


def _work(made: Model, bench: Bench) -> Work:
    """Functions that enqueue matrix products for about `BUSY_S` seconds, and wait for them; in a
    dry run, copies of a layer.
    """
    layer = made.layers[0]
    if bench.dry:
        return lambda: made.streamer.load(layer), made.streamer.copies.synchronize
    import torch

    x = torch.ones(2048, HIDDEN, dtype=torch.bfloat16, device="cuda")
    out, weights = torch.empty_like(x), made.weights(0)[0]

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(x, weights, out=out)

    products(3)
    torch.cuda.synchronize()

    def some() -> None:
        products(20)
        torch.cuda.synchronize()

    count = max(1, int(20 * BUSY_S / timed(some)))
    return lambda: products(count), torch.cuda.synchronize


def _through(work: Work) -> None:
    for part in work:
        part()


def _beside(driver: CudaDriver, work: Work) -> dict[str, float]:
    begin, wait = work
    begin()
    took = _round(driver)
    wait()
    return took
