"""Rows on vLLM's own engine with a small model, whose memory is moved by hand.

A dry run has the same engines on host memory. Rows are skipped where vLLM is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import small
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_child import Ended, Engine, need_vllm, ran
from benchmarks.gpu.rows import Row
from benchmarks.gpu.ways import COMPILED, EAGERLY, GRAPHS

ROOT = Path(__file__).parents[2]
EXACT = {"TRITON_F32_DEFAULT": "ieee", "TRITON_CACHE_DIR": str(ROOT / "out" / "gpu" / "triton")}
"""Environment of an engine whose texts must be those of the model's circuit: Triton's own choice
for float32 products is TF32. The cache is another one, because Triton may not tell cached kernels
apart by that choice.
"""
WITHOUT_WAITS = {
    "mirage.engine.cpu_worker.MirageCPUWorker": "tests.tampered.cpu_worker.UnawaitedWorker",
    "mirage.engine.gpu_worker.MirageGPUWorker": "tests.tampered.gpu_worker.UnawaitedWorker",
}
"""The worker that does not wait for streamed layers, by the one that does."""
HOLDS = [0, 1, -1, "moving", 0]
"""Layers away in each round; see `engine_run`."""


@dataclass(frozen=True)
class Found:
    """Outputs of an engine in each round, and facts about it."""

    rounds: list[list[Any]]
    facts: dict[str, Any]


def checked(bench: Bench) -> Row:
    """Row on `mirage check`: vLLM inspects the model in a child process, as before every start."""
    need_vllm()
    fit = small.fit(bench.dry, way=EAGERLY)
    return Row(
        "engine, check",
        "vLLM's word on a small model, asked before anything starts",
        f"{fit.layers} layers of {fit.layer_bytes >> 10} KiB, KV blocks {fit.base_blocks} to "
        f"{fit.max_blocks}, {fit.movable_layers} layers may go",
        "an answer",
        fit.movable_layers > 1,
    )


def eagerly(bench: Bench) -> Row:
    """Row on one small engine in eager steps: ten requests, memory moved in every way, and a
    stop.
    """
    return _smoke(bench, way=EAGERLY)


def with_graphs(bench: Bench) -> Row:
    """The same row as `eagerly`, with CUDA graphs."""
    bench.need_kernels()
    return _smoke(bench, way=GRAPHS)


def compiled(bench: Bench) -> Row:
    """The same row as `eagerly`, with compiled steps and CUDA graphs, the default."""
    bench.need_kernels()
    return _smoke(bench, way=COMPILED)


def alike_eagerly(bench: Bench) -> list[Row]:
    """Rows on whether tokens and log-probabilities stay the same bits, in eager steps, while none,
    one, and all but one of the movable layers are remapped, and while layers move. As a control,
    they must differ without the waits for streamed layers.
    """
    bench.need_kernels()  # the engine tests have it on a host
    return _alike(bench, way=EAGERLY)


def alike_with_graphs(bench: Bench) -> list[Row]:
    """The same rows as `alike_eagerly`, with CUDA graphs."""
    bench.need_kernels()
    return _alike(bench, way=GRAPHS)


def alike_compiled(bench: Bench) -> list[Row]:
    """The same rows as `alike_eagerly`, with compiled steps and CUDA graphs."""
    bench.need_kernels()
    return _alike(bench, way=COMPILED)


def _smoke(bench: Bench, *, way: str) -> Row:
    what = f"one small engine {way}: ten requests, layers away, all back, KV grown and shrunk"
    aim = "the same texts throughout"
    try:
        found = _run(bench, way=way)
    except Ended as error:
        return Row(f"engine, {way}", what, str(error), aim, False)
    facts, wrong = found.facts, _wrong(found)
    wrong += _otherwise(way, facts)
    base, most = facts["extents"]
    if not (facts["layers_remapped"] and most > base and facts["bytes_streamed"]):
        wrong.append("memory did not move")
    value = (
        f"started in {facts['started_s']:.0f} s, {facts['layers_remapped']} of {facts['layers']} "
        f"layers away, KV extents {base} to {most}, {facts['bytes_streamed'] >> 20} MiB streamed: "
    )
    value += "; ".join(wrong) if wrong else "all texts the same"
    return Row(f"engine, {way}", what, value, aim, not wrong, facts)


def _alike(bench: Bench, *, way: str) -> list[Row]:
    try:
        found, broken = _run(bench, way=way, runs=2), _run(bench, way=way, wait=False)
    except Ended as error:
        return [Row(f"outputs, {way}", "", str(error), "", False)]
    wrong = _wrong(found) + _otherwise(way, found.facts)
    first, *others = broken.rounds
    seen = any(other != first for other in others)
    return [
        Row(
            f"outputs, {way}",
            f"tokens and top-5 logprobs of {small.REQUESTS} requests, layers away {HOLDS}",
            "; ".join(wrong) or "bit-identical, and what the model's circuit says",
            "bit-identical",
            not wrong,
            found.facts,
        ),
        Row(
            f"outputs without waits, {way}",
            "the same without the waits for streamed layers",
            "differ" if seen else "the same: this comparison would not see a fault",
            "differ",
            seen,
        ),
    ]


def _otherwise(way: str, facts: dict[str, Any]) -> list[str]:
    """Faults of a run whose steps did not run in the `way` requested, a constant of
    `benchmarks.gpu.ways`.
    """
    if way == COMPILED and not facts["compiled"]:
        return ["nothing was compiled"]
    return ["no graph was captured"] if way == GRAPHS and facts["eager"] else []


def _wrong(found: Found) -> list[str]:
    """Differences between rounds, and from the texts of the model's circuit."""
    first, wrong = found.rounds[0], changes(found.rounds)
    exact = [text == told[0] for text, told in zip(small.exact(), first, strict=True)]
    if not all(exact):
        wrong.append(f"{exact.count(False)} of {len(exact)} texts are not the circuit's")
    return wrong


def changes(rounds: list[list[Any]]) -> list[str]:
    """Differences of each round from the first one, in which no memory is away."""
    first, *others = rounds
    return [
        f"round {number} (layers away {HOLDS[number - 1]}) differs in {differing(first, other)}"
        for number, other in enumerate(others, 2)
        if other != first
    ]


def differing(first: list[Any], other: list[Any]) -> str:
    texts = sum(a[0] != b[0] for a, b in zip(first, other, strict=True))
    return f"{texts} of {len(first)} texts" if texts else "logprobs alone"


def _run(bench: Bench, *, way: str, wait: bool = True, runs: int = 1) -> Found:
    """Run the engine, as the first of `runs` that share the row's time; `way` is a key of `ON_GPU`,
    or dry of `ON_HOST`. Raises `Ended` if the engine ends early, `Skipped` without vLLM.
    """
    need_vllm()
    from mirage.serve.launch import launcher

    config, fit = small.config(bench.dry, way=way), small.fit(bench.dry, way=way)
    command = launcher.command(config, config.tenants[0], fit, Path(), None)
    if not wait:
        command = without_waits(command)
    engine = Engine(command, config, bench.share(runs), more=EXACT)
    facts = ran(engine, {"prompts": small.prompts(), "tokens": small.TOKENS, "rounds": HOLDS})
    return Found(facts.pop("rounds"), facts)


def without_waits(command: list[str]) -> list[str]:
    """The same command line, with a worker of the tests that does not wait for streamed layers."""
    place = command.index("--worker-cls") + 1
    return [*command[:place], WITHOUT_WAITS[command[place]], *command[place + 1 :]]
