"""Captured CUDA graphs: the memory behind their parameters, and captures that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.gpu.bench import HIDDEN, MIB, Bench, Model, model
from benchmarks.gpu.rows import Row, said

if TYPE_CHECKING:
    import torch

SLACK = 64 * MIB
"""Bytes by which the device's free memory may differ, because others use it too."""


def replayed(bench: Bench) -> Row:
    """Row on a CUDA graph that reads a layer: the layer's range gets other pages with other
    numbers, and then its own again.

    Each replay must give what an eager product gives for the present content of the range.
    """
    bench.need_kernels()
    import torch

    with model(bench, layers=2) as made:
        x = torch.randn(16, HIDDEN, dtype=torch.bfloat16, device="cuda")
        out = torch.empty_like(x)
        layer, weights = made.layers[0], made.weights(0)[0]
        _fill(made, seed=1)
        torch.mm(x, weights, out=out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mm(x, weights, out=out)
        first = _replay(graph, out)
        own = layer.range.unback(0, made.streamer.frame_bytes)
        layer.range.back(0, made.pool.take(len(own), "other"))
        _fill(made, seed=2)
        other = _replay(graph, out)
        eager = torch.mm(x, weights)
        torch.cuda.synchronize()
        made.pool.give(layer.range.unback(0, made.streamer.frame_bytes))
        layer.range.back(0, own)
        again = _replay(graph, out)
        del graph
    moved = bool(torch.equal(other, eager)) and not torch.equal(first, other)
    same = moved and bool(torch.equal(first, again))
    return Row(
        "graph after remapping",
        "a captured graph replayed with other pages behind its parameters, and with its own again",
        "bit-identical" if same else f"other pages {'seen' if moved else 'not seen'}, different",
        "bit-identical",
        same,
    )


def failed(bench: Bench) -> Row:
    """Row on a failed capture: kernels run eagerly afterwards, memory moves, and a new capture
    succeeds.
    """
    bench.need_kernels()
    import torch

    x = torch.randn(256, 256, device="cuda")
    wanted = (x @ x).sum().item()
    return as_before(
        {
            "refusal": lambda: _refused(x),
            "eager kernels": lambda: _same((x @ x).sum().item(), wanted),
            "memory": _had_and_given_back,
            "another capture": lambda: _same(_captured(x).sum().item(), wanted),
        }
    )


def as_before(checks: dict[str, Callable[[], None]]) -> Row:
    """Row on operations after a failed capture. Each check raises an error if its operation is not
    as before.
    """
    wrong = {}
    for name, check in checks.items():
        try:
            check()
        except Exception as error:  # also what torch and the driver say
            wrong[name] = said(error)
    shown = "; ".join(f"{name}: {why}" for name, why in wrong.items())
    return Row(
        "capture that fails",
        "after it: eager kernels, memory that can be had and given back, another capture",
        f"not as before: {shown}" if wrong else "all as before",
        "all as before",
        not wrong,
        {name: wrong.get(name, "right") for name in checks},
    )


def _refused(x: torch.Tensor) -> None:
    import torch

    from mirage.engine.captures import end_allocation

    pool = torch.cuda.graph_pool_handle()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool):
            (x @ x).sum().item()  # waits for the device, which no capture may
    except RuntimeError:
        end_allocation(x.device, {pool})  # as engines do
        return
    raise AssertionError("the capture did not fail, although it waited for the device")


def _same(found: float, wanted: float) -> None:
    assert found == wanted, f"{found} instead of {wanted}"


def _had_and_given_back() -> None:
    import torch

    free = torch.cuda.mem_get_info()[0]
    torch.empty(free // 4, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    short = free - torch.cuda.mem_get_info()[0]
    assert short <= SLACK, f"{short >> 20} MiB of {free >> 22} did not come back"


def _captured(x: torch.Tensor) -> torch.Tensor:
    """Output of a graph that is captured and replayed now."""
    import torch

    out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(x, x, out=out)
    graph.replay()
    torch.cuda.synchronize()
    return out


def _replay(graph: torch.cuda.CUDAGraph, out: torch.Tensor) -> torch.Tensor:
    import torch

    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return out.clone()


def _fill(made: Model, seed: int) -> None:
    """Write drawn numbers into the first matrix of the first layer, wherever its pages are now."""
    import torch

    master = made.masters[1]
    generator = torch.Generator().manual_seed(seed)
    halves = master.tensor().view(torch.bfloat16)
    halves[: HIDDEN * HIDDEN] = torch.randn(HIDDEN * HIDDEN, generator=generator).bfloat16()
    layer = made.layers[0]
    made.driver.copy(layer.range.address, master.address, layer.nbytes)
