"""Rows on memory alone: loading a layer, and turning one into KV cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import closing

from cuda.bindings import driver as cu

from benchmarks.gpu.bench import CHUNK, MIB, Bench, Model, model
from benchmarks.gpu.rows import Row, alternating, at_most, median, medians, ms, timed
from mirage.streaming.transfer import LayerFrame
from mirage.tiers.region import Region
from mirage.tiers.space import LARGEST_SLAB
from vmm.cuda import CudaDriver
from vmm.cuda_calls import call
from vmm.host import host_buffer
from vmm.pages import PagePool
from vmm.space import Range

PAGES = (2, 8, 32, 128)
"""Sizes of a handle that are compared, in MiB."""
HANDOVER_S = 2e-3
CHUNKS = (16 * MIB, CHUNK)
"""Bytes of one copy of a part of a layer; the second is the default of `device.copy_chunk`."""
SMALL_S = 1e-3


def layer_load(bench: Bench) -> Row:
    """Row on the load of a layer as the engine does it, relative to a plain copy of
    the same bytes.
    """
    with model(bench, layers=2) as made:
        layer = made.layers[0]
        driver, nbytes = made.driver, layer.nbytes
        copies, event = made.streamer.copies, driver.event()
        with driver.opened():
            plain = call(cu.cuMemAlloc, nbytes)
            raw = call(cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING)

        def engine() -> None:
            copies.copy(layer.range.address, layer.master, nbytes)
            copies.record(event)
            event.wait()

        def pinned() -> None:
            with driver.entered():
                call(cu.cuMemcpyAsync, plain, layer.master, nbytes, raw)
                call(cu.cuStreamSynchronize, raw)

        seconds = alternating(
            {"layer": lambda: timed(engine), "plain": lambda: timed(pinned)}, bench.rounds
        )
        with driver.opened():
            call(cu.cuMemFree, plain)
            call(cu.cuStreamDestroy, raw)
    middle = medians(seconds)
    ratio = middle["plain"] / middle["layer"]
    rates = {name: nbytes / s / 1e9 for name, s in middle.items()}
    return Row(
        "layer load",
        f"a layer of {nbytes / 1e6:.0f} MB from locked host memory, against a plain copy",
        f"{ratio:.3f} ({rates['layer']:.1f} against {rates['plain']:.1f} GB/s)",
        ">= 0.97",
        ratio >= 0.97,
        {"gb_s": rates},
    )


def small_beside_a_layer(bench: Bench) -> Row:
    """Row on the time that the small inputs of a step wait behind a layer on the link: behind the
    whole layer, or behind one chunk of it.
    """
    middle = {}
    for chunk in (None, *CHUNKS):
        with model(bench, layers=2, chunk_bytes=chunk and min(chunk, bench.layer_bytes)) as made:
            name = f"{chunk // MIB} MiB" if chunk else "whole"
            middle[name] = median([_small_s(made) for _ in range(bench.rounds)])
            layer = made.layers[0]
            loads = [timed(lambda made=made, layer=layer: _load(made, layer)) for _ in range(5)]
            middle[f"layer, {name}"] = median(loads)
    usual = middle[f"{CHUNK // MIB} MiB"]
    small = ", ".join(f"{n} {ms(s)}" for n, s in middle.items() if not n.startswith("layer"))
    whole = ", ".join(f"{n[7:]} {ms(s)}" for n, s in middle.items() if n.startswith("layer"))
    return Row(
        "small copy beside a layer",
        f"4 KiB on another stream while {bench.layer_bytes / 1e6:.0f} MB are copied, by chunk",
        f"{small}; the layer itself: {whole}",
        f"<= {SMALL_S * 1e3:.0f} ms in chunks of {CHUNK // MIB} MiB",
        at_most(usual, SMALL_S),
        middle,
    )


def _load(made: Model, layer: LayerFrame) -> None:
    made.streamer.load(layer)
    made.streamer.copies.synchronize()


def _small_s(made: Model) -> float:
    """Seconds until 4 KiB have arrived over the link on which a layer was sent just before."""
    driver, size = made.driver, 4096
    stream, layer, other = driver.stream(), made.layers[0], made.layers[1]
    made.streamer.load(layer)

    def small() -> None:
        stream.copy(other.range.address, other.master, size)
        stream.synchronize()

    took = timed(small)
    made.streamer.copies.synchronize()
    stream.close()
    return took


def locking(bench: Bench) -> Row:
    """Row on the cost of locking a slab of the host pool, alone and while a layer is loaded, and of
    a copy through a bounce buffer.
    """
    size = 2 * MIB if bench.dry else LARGEST_SLAB
    with model(bench, layers=2) as made, closing(Region.create(size)) as region:
        driver, layer = made.driver, made.layers[0]
        slab = (ctypes.c_char * size).from_buffer(region.memory)
        address = ctypes.addressof(slab)
        ctypes.memset(address, 1, size)

        def locked() -> None:
            driver.pin(address, size)
            driver.unpin(address)

        def beside() -> float:
            made.streamer.load(layer)
            took = timed(locked)
            made.streamer.copies.synchronize()
            return took

        with closing(host_buffer(size)) as bounce:
            middle = medians(
                alternating(
                    {
                        "alone": lambda: timed(locked),
                        "beside": beside,
                        "layer": lambda: timed(lambda: _load(made, layer)),
                        "bounce": lambda: timed(
                            lambda: ctypes.memmove(bounce.address, address, size)
                        ),
                    },
                    bench.rounds,
                )
            )
    alone, busy, whole = middle["alone"], middle["beside"], middle["layer"]
    return Row(
        "locking",
        f"{size // MIB} MiB of the host pool locked and unlocked, alone and beside a layer; "
        "copied by one core",
        f"{ms(alone)} and {ms(busy)}; {ms(middle['bounce'])}; the layer: {ms(whole)}",
        details=middle,
    )


def handover(bench: Bench) -> Row:
    """Row on the time until a layer's pages are usable as KV memory, by page size, relative to
    cuMemAlloc, clearing and cuMemFree.
    """
    sizes = [size for size in PAGES if bench.layer_bytes % (size * MIB) == 0 or not bench.dry]
    middle = {size: _handover_s(bench, size * MIB) for size in sizes}
    usual = bench.page_bytes // MIB
    moved, malloc = middle[usual]
    smallest = middle[PAGES[0]][0]
    by_size = ", ".join(
        f"{size} MiB {ms(s)} ({smallest / s:.1f}x as fast as {PAGES[0]} MiB)"
        for size, (s, _) in middle.items()
    )
    return Row(
        "handover",
        f"one layer ({bench.layer_bytes / 1e6:.0f} MB) from parameters to KV: unmap, map, clear",
        f"{ms(moved)} with pages of {usual} MiB, {moved / malloc:.2f}x of cuMemAlloc, clearing and "
        f"cuMemFree ({ms(malloc)}); {by_size}",
        f"<= {HANDOVER_S * 1e3:.0f} ms",
        at_most(moved, HANDOVER_S),
        {
            "pages_mib": {size: s for size, (s, _) in middle.items()},
            "against_2_mib": {size: smallest / s for size, (s, _) in middle.items()},
            "malloc_s": malloc,
        },
    )


def _handover_s(bench: Bench, page_bytes: int) -> tuple[float, float]:
    """Median seconds of a handover, and of allocating, clearing and freeing as much memory with the
    driver's own allocator.
    """
    frame = -(-bench.layer_bytes // page_bytes) * page_bytes
    with bench.open(page_bytes) as driver:
        pool = PagePool(driver, frame)
        layer, kv = Range(driver, frame), Range(driver, frame)
        layer.back(0, pool.take(frame // page_bytes, "layer"))

        def there() -> None:
            kv.back(0, layer.unback(0, frame))
            driver.fill(kv.address, 0, frame)

        def malloc() -> None:
            with driver.opened():
                address = call(cu.cuMemAlloc, frame)
                call(cu.cuMemsetD8Async, address, 0, frame, 0)
                call(cu.cuCtxSynchronize)
                call(cu.cuMemFree, address)

        moved, made = [], []
        for _ in range(bench.rounds):
            moved.append(timed(there))
            layer.back(0, kv.unback(0, frame))
            made.append(timed(malloc))
    return median(moved), median(made)


def between_processes(bench: Bench) -> Row:
    """Row on creating and releasing the memory of a layer, with pages and with the driver's own
    allocator.
    """
    ways: dict[str, Callable[[CudaDriver], float]] = {
        "create, map, unmap, release": lambda d: timed(lambda: _through_pages(d, bench)),
        "cuMemAlloc, cuMemFree": lambda d: timed(lambda: _through_malloc(d, bench.layer_bytes)),
    }
    with bench.open(bench.page_bytes) as driver:
        middle = medians(
            alternating(
                {name: lambda way=way: way(driver) for name, way in ways.items()}, bench.rounds
            )
        )
    pages, malloc = middle.values()
    return Row(
        "release and create",
        f"memory of one layer ({bench.layer_bytes / 1e6:.0f} MB) taken from the device and back",
        f"{ms(pages)}, {pages / malloc:.2f}x of cuMemAlloc and cuMemFree ({ms(malloc)})",
        details=middle,
    )


def _through_pages(driver: CudaDriver, bench: Bench) -> None:
    count = -(-bench.layer_bytes // driver.page_bytes)
    nbytes = count * driver.page_bytes
    address = driver.reserve(nbytes)
    pages = driver.create(count)
    driver.map(address, pages)
    driver.unmap(address, nbytes)
    driver.release(pages)
    driver.unreserve(address)


def _through_malloc(driver: CudaDriver, nbytes: int) -> None:
    with driver.opened():
        call(cu.cuMemFree, call(cu.cuMemAlloc, nbytes))


def one_more(bench: Bench) -> Row:
    """Row on the time to give one layer more away while the device idles, as between two steps."""
    with model(bench) as made:
        most = len(made.layers) - 3
        few, many = min(2, most), min(10, most)
        streamer = made.streamer
        took = {}
        for remapped in (few, many):
            streamer.set(remapped, 2)
            made.driver.synchronize()
            took[remapped] = timed(lambda remapped=remapped: streamer.set(remapped + 1, 2))
            made.driver.synchronize()
    return Row(
        "one layer more",
        "giving one layer more away, between two steps",
        ", ".join(f"at {remapped} layers remapped {ms(s)}" for remapped, s in took.items()),
        details=took,
    )
