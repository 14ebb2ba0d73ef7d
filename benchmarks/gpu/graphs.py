"""Captured CUDA graphs: the memory behind their parameters, and captures that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.gpu.bench import HIDDEN, Bench, Model, model
from benchmarks.gpu.rows import Row

if TYPE_CHECKING:
    import torch


def replayed(bench: Bench) -> Row:
    """A graph that reads a layer, whose range gets other pages with other numbers, then its own.

    Each replay must say what an eager product says of what lies in the range then.
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
    """What comes after a capture that ended with an error: eager kernels, memory, a capture."""
    bench.need_kernels()
    import torch

    x = torch.randn(256, 256, device="cuda")
    wanted = (x @ x).sum().item()
    graph, refused = torch.cuda.CUDAGraph(), False
    try:
        with torch.cuda.graph(graph):
            (x @ x).sum().item()  # waits for the device, which no capture may
    except RuntimeError:
        refused = True
    del graph
    eager = (x @ x).sum().item() == wanted
    free = torch.cuda.mem_get_info()[0]
    torch.empty(free // 4, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    given_back = torch.cuda.mem_get_info()[0] >= free - (64 << 20)
    out, again = torch.empty_like(x), torch.cuda.CUDAGraph()
    with torch.cuda.graph(again):
        torch.mm(x, x, out=out)
    again.replay()
    captured = out.sum().item() == wanted
    found = {"refused": refused, "eager": eager, "memory": given_back, "capture": captured}
    wrong = [name for name, right in found.items() if not right]
    return Row(
        "capture that fails",
        "after it: eager kernels, memory that can be had and given back, another capture",
        f"not as before: {', '.join(wrong)}" if wrong else "all as before",
        "all as before",
        not wrong,
        found,
    )


def _replay(graph: torch.cuda.CUDAGraph, out: torch.Tensor) -> torch.Tensor:
    import torch

    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return out.clone()


def _fill(made: Model, seed: int) -> None:
    """Numbers into the first matrix of the first layer, where it lies now."""
    import torch

    master = made.masters[1]
    generator = torch.Generator().manual_seed(seed)
    halves = master.tensor().view(torch.bfloat16)
    halves[: HIDDEN * HIDDEN] = torch.randn(HIDDEN * HIDDEN, generator=generator).bfloat16()
    layer = made.layers[0]
    made.driver.copy(layer.range.address, master.address, layer.nbytes)
