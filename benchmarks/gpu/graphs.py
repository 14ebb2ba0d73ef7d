"""A captured CUDA graph and the memory behind its parameters."""

from __future__ import annotations

from benchmarks.gpu.bench import HIDDEN, Bench, Model, model
from benchmarks.gpu.rows import Row


def replayed(bench: Bench) -> Row:
    """A graph that reads a layer, after the layer's range got other pages and its own again."""
    bench.need_kernels()
    import torch

    with model(bench, layers=2) as made:
        x = torch.randn(16, HIDDEN, dtype=torch.bfloat16, device="cuda")
        out = torch.empty_like(x)
        weights = made.weights(0)
        made.driver.copy(made.layers[0].range.address, _noise(made), made.layers[0].nbytes)
        torch.mm(x, weights[0], out=out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mm(x, weights[0], out=out)
        results = [_replay(graph, out)]
        own = made.layers[0].range.unback(0, made.streamer.frame_bytes)
        others = made.pool.take(len(own), "other")
        made.layers[0].range.back(0, others)
        made.driver.copy(made.layers[0].range.address, _noise(made), made.layers[0].nbytes)
        results.append(_replay(graph, out))
        made.layers[0].range.unback(0, made.streamer.frame_bytes)
        made.layers[0].range.back(0, own)
        results.append(_replay(graph, out))
        del graph
    same = all(torch.equal(results[0], other) for other in results[1:])
    return Row(
        "graph after remapping",
        "a captured graph replayed with other pages behind its parameters, and with its own again",
        "bit-identical" if same else "different",
        "bit-identical",
        same,
    )


def _replay(graph: object, out: object) -> object:
    import torch

    out.zero_()  # type: ignore[attr-defined]
    graph.replay()  # type: ignore[attr-defined]
    torch.cuda.synchronize()
    return out.clone()  # type: ignore[attr-defined]


def _noise(made: Model) -> int:
    """Address of a master with numbers in it, the same each time."""
    import torch

    master = made.masters[1]
    generator = torch.Generator().manual_seed(1)
    halves = master.tensor().view(torch.bfloat16)
    halves[: HIDDEN * HIDDEN] = torch.randn(HIDDEN * HIDDEN, generator=generator).bfloat16()
    return master.address
