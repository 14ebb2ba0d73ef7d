"""vLLM's own engine with a small model whose memory is moved by hand, where vLLM is installed.

The demo's models: every layer has other weights, and what they say can be computed exactly. A dry
run has the same engines on host memory.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Row, Skipped, said

if TYPE_CHECKING:
    from mirage.config import Config
    from mirage.serve.fit import Fit
    from mirage.serve.rundir import RunDir

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "out" / "gpu" / "models"
FAMILY = "llama"
LAYER_BYTES = {True: 3 << 20, False: 64 << 20}
"""Dry, and on a GPU: small layers would be there at once, and leaving out the waits for them would
change nothing. Large ones are also copied in several chunks."""
REQUESTS, TOKENS = 10, 24
LENGTHS = (1, 5, 17, 31, 32, 33, 64, 80, 100, 120)
EAGERLY, GRAPHS, COMPILED = "eagerly", "with graphs", "compiled"
ON_GPU = {
    EAGERLY: {"graphs": False, "compile": False},
    GRAPHS: {"graphs": True, "compile": False},
    COMPILED: {"graphs": True, "compile": True},
}
"""How steps run: the part of the configuration that says so."""
ON_HOST = {EAGERLY: {"compile": False}, COMPILED: {"compile": True}}
LIMIT_S = {
    True: {EAGERLY: 240, COMPILED: 300},
    False: {EAGERLY: 100, GRAPHS: 180, COMPILED: 240},
}
"""Longest run of an engine in seconds, dry and on a GPU, after which it is killed. A dry run
computes on the cores of a laptop, which other engines may need too."""
COMPILING_S = 400
"""An engine of 40 layers may take that compiles at first, stock vLLM for one."""
EXACT = {"TRITON_F32_DEFAULT": "ieee", "TRITON_CACHE_DIR": str(ROOT / "out" / "gpu" / "triton")}
"""Whose texts are to be the circuit's: Triton's own choice for float32 products is TF32. It may
not tell its cached kernels apart by that."""
WITHOUT_WAITS = {
    "mirage.engine.cpu_worker.MirageCPUWorker": "tests.tampered.cpu_worker.UnawaitedWorker",
    "mirage.engine.gpu_worker.MirageGPUWorker": "tests.tampered.gpu_worker.UnawaitedWorker",
}
"""The worker that does not wait for streamed layers, by the one that does."""
BATCHES, STEPS, NEAR = [1, 16, 64], 64, 1.02
STOCK = "stock vLLM"
HOLDS = [0, 1, -1, "moving", 0]
"""Layers away in each round; see `engine_run`."""


Timed = Callable[[], dict[str, float]]


class Ended(Exception):
    """An engine ended; the message is where it was and the last thing that it said."""


@dataclass(frozen=True)
class Engine:
    """How one is started: its server's command line, and whose environment it has."""

    command: list[str]
    config: Config
    limit_s: float
    stock: bool = False
    """Nothing in its environment is MIRAGE's choice."""
    more: dict[str, str] = field(default_factory=dict)
    """Beside that environment."""

    def environment(self, rundir: RunDir) -> dict[str, str]:
        """That of `mirage serve`'s engines of this configuration."""
        from mirage.serve import launcher

        variables = launcher.environment(self.config, rundir)
        if self.stock:
            variables = {k: v for k, v in variables.items() if k not in launcher.BREAKABLE}
        return variables | self.more | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@dataclass(frozen=True)
class Found:
    """What an engine said in each round, and what is known of it."""

    rounds: list[list[Any]]
    facts: dict[str, Any]


def checked(bench: Bench) -> Row:
    """`mirage check`: vLLM is asked about the model in a child process, as before every start."""
    need_vllm()
    fit = _fit(bench.dry, way=EAGERLY)
    return Row(
        "engine, check",
        "vLLM's word on a small model, asked before anything starts",
        f"{fit.layers} layers of {fit.layer_bytes >> 10} KiB, KV blocks {fit.base_blocks} to "
        f"{fit.max_blocks}, {fit.movable_layers} layers may go",
        "an answer",
        fit.movable_layers > 1,
    )


def eagerly(bench: Bench) -> Row:
    """One engine, ten requests, memory moved in every way, stop."""
    return _smoke(bench, way=EAGERLY)


def with_graphs(bench: Bench) -> Row:
    """The same with CUDA graphs."""
    bench.need_kernels()
    return _smoke(bench, way=GRAPHS)


def compiled(bench: Bench) -> Row:
    """The same with compiled steps and CUDA graphs, as by default."""
    bench.need_kernels()
    return _smoke(bench, way=COMPILED)


def alike_eagerly(bench: Bench) -> list[Row]:
    """Tokens and logprobs at each alpha, and without the waits."""
    bench.need_kernels()  # the engine tests have it on a host
    return _alike(bench, way=EAGERLY)


def alike_with_graphs(bench: Bench) -> list[Row]:
    """The same with CUDA graphs."""
    bench.need_kernels()
    return _alike(bench, way=GRAPHS)


def alike_compiled(bench: Bench) -> list[Row]:
    """The same with compiled steps and CUDA graphs."""
    bench.need_kernels()
    return _alike(bench, way=COMPILED)


def against_stock(bench: Bench) -> Iterator[Row]:
    """A decode step with nothing remapped against vLLM as it comes: compiled, and with graphs."""
    bench.need_kernels()
    need_vllm()
    from benchmarks.gpu import dummies

    model = dummies.hollow(MODELS / "opt-13b")
    yield from against(
        lambda: step_times(_stock(model), BATCHES),
        {
            COMPILED: lambda: step_times(_ours(model, way=COMPILED), BATCHES),
            GRAPHS: lambda: step_times(_ours(model, way=GRAPHS), BATCHES),
            EAGERLY: lambda: step_times(_ours(model, way=EAGERLY), BATCHES),
        },
    )


def against(stock: Timed, ways: dict[str, Timed]) -> Iterator[Row]:
    """A row for each way of ours, as soon as it is there; one that fails is a miss.

    Each gives the seconds of a step by the number of requests.
    """
    known, missed = _tried(STOCK, stock)
    if missed:
        yield missed
    for name, way in ways.items():
        times, missed = _tried(name, way)
        yield missed or compared(name, times, known)


def compared(name: str, times: dict[str, float], stock: dict[str, float]) -> Row:
    """One way of ours against stock vLLM, whose times are empty if there are none."""
    ratios = {batch: seconds / stock[batch] for batch, seconds in times.items() if stock}
    shown = ", ".join(
        f"{f'{ratios[batch]:.3f} ' if stock else ''}at {batch} ({seconds * 1e3:.2f} ms)"
        for batch, seconds in times.items()
    )
    return Row(
        f"against stock vLLM, {name}",
        f"OPT-13b: a decode step, nothing remapped, {name}, over stock vLLM's",
        shown,
        f"<= {NEAR}" if stock else "",
        max(ratios.values()) <= NEAR if stock else None,
        {"seconds": times, "stock": stock},
    )


def _tried(name: str, timed: Timed) -> tuple[dict[str, float], Row | None]:
    """Its times, or none and a row that misses."""
    try:
        return timed(), None
    except Exception as error:
        why = str(error) if isinstance(error, Ended) else said(error)
        what = "OPT-13b: a decode step, nothing remapped"
        return {}, Row(f"against stock vLLM, {name}", f"{what}, {name}", why, "", False)


def step_times(engine: Engine, batches: list[int]) -> dict[str, float]:
    """Seconds of a decode step by the number of requests. Raises `Ended`."""
    spec = {"batches": batches, "tokens": STEPS}
    times: dict[str, float] = ran(engine, spec)["times"]
    return times


def _stock(model: Path) -> Engine:
    """vLLM's server as anybody starts it, of which the engine is taken."""
    from mirage.serve import launcher

    given = {"model": str(model), "load_format": "dummy", "dtype": "bfloat16"}
    limits = {"max_model_len": 2048, "gpu_memory_utilization": 0.5}
    command = [sys.executable, *launcher.SERVER, *launcher.flags(given | limits)]
    return Engine(command, _large(model, way=EAGERLY), COMPILING_S, stock=True)


def _ours(model: Path, *, way: str) -> Engine:
    limit_s = COMPILING_S if way == COMPILED else LIMIT_S[False][GRAPHS]
    return served(_large(model, way=way), limit_s)


def served(config: Config, limit_s: float) -> Engine:
    """As `mirage serve` starts the first model of `config`. Raises `ConfigError` if it refuses."""
    from mirage.serve import launcher
    from mirage.serve.preflight import fit_config

    tenant = config.tenants[0]
    fit = fit_config(config)[tenant.name]
    return Engine(launcher.command(config, tenant, fit, Path(), None), config, limit_s)


def _large(model: Path, *, way: str) -> Config:
    from mirage.config import Config

    tenant = {"name": "one", "model": model, "share": 100, "max_model_len": 2048}
    tenant["engine_args"] = {"load_format": "dummy"}
    device = {"kind": "cuda", "memory": "40GiB", "page": "8MiB", **ON_GPU[way]}
    return Config.model_validate({"device": device, "block_tokens": 16, "tenants": [tenant]})


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
    if not (facts["alpha"] and most > base and facts["bytes_streamed"]):
        wrong.append("memory did not move")
    value = (
        f"started in {facts['started_s']:.0f} s, {facts['alpha']} of {facts['layers']} layers "
        f"away, KV extents {base} to {most}, {facts['bytes_streamed'] >> 20} MiB streamed: "
    )
    value += "; ".join(wrong) if wrong else "all texts the same"
    return Row(f"engine, {way}", what, value, aim, not wrong, facts)


def _alike(bench: Bench, *, way: str) -> list[Row]:
    try:
        found, broken = _run(bench, way=way), _run(bench, way=way, wait=False)
    except Ended as error:
        return [Row(f"outputs, {way}", "", str(error), "", False)]
    wrong = _wrong(found) + _otherwise(way, found.facts)
    first, *others = broken.rounds
    seen = any(other != first for other in others)
    return [
        Row(
            f"outputs, {way}",
            f"tokens and top-5 logprobs of {REQUESTS} requests, layers away {HOLDS}",
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
    """What is wrong if steps did not run as they were to."""
    if way == COMPILED and not facts["compiled"]:
        return ["nothing was compiled"]
    return ["no graph was captured"] if way == GRAPHS and facts["eager"] else []


def _wrong(found: Found) -> list[str]:
    """What differs, round by round, and from what the model's circuit says."""
    first, *others = found.rounds
    wrong = [
        f"round {index + 2} (layers away {HOLDS[index + 1]}) differs in {differing(first, other)}"
        for index, other in enumerate(others)
        if other != first
    ]
    exact = [text == told[0] for text, told in zip(_exact(), first, strict=True)]
    if not all(exact):
        wrong.append(f"{exact.count(False)} of {len(exact)} texts are not the circuit's")
    return wrong


def differing(first: list[Any], other: list[Any]) -> str:
    texts = sum(a[0] != b[0] for a, b in zip(first, other, strict=True))
    return f"{texts} of {len(first)} texts" if texts else "logprobs alone"


def _run(bench: Bench, *, way: str, wait: bool = True) -> Found:
    """Raises `Ended`, `Skipped`."""
    need_vllm()
    from mirage.serve import launcher

    config, fit = _config(bench.dry, way=way), _fit(bench.dry, way=way)
    command = launcher.command(config, config.tenants[0], fit, Path(), None)
    if not wait:
        command = _without_waits(command)
    engine = Engine(command, config, LIMIT_S[bench.dry][way], more=EXACT)
    facts = ran(engine, {"prompts": _prompts(), "tokens": TOKENS, "rounds": HOLDS})
    return Found(facts.pop("rounds"), facts)


def ran(engine: Engine, spec: dict[str, Any]) -> dict[str, Any]:
    """What `engine_run` found. Raises `Ended`."""
    from mirage.serve.rundir import RunDir

    with RunDir(None) as rundir, tempfile.TemporaryDirectory() as folder:
        asked, out, log = (Path(folder) / name for name in ("spec.json", "out.json", "log"))
        asked.write_text(json.dumps(spec | {"command": engine.command}))
        stage = _child(asked, out, log, engine.environment(rundir), engine.limit_s)
        if not out.exists():
            raise Ended(f"the engine ended, {stage}: {_last_error(log)}")
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def _child(spec: Path, out: Path, log: Path, environment: dict[str, str], limit_s: float) -> str:
    """Run the engine to its end; what it was at last about."""
    words = [sys.executable, "-m", "benchmarks.gpu.engine_run", str(spec), str(out)]
    late = ""
    with log.open("wb") as errors:
        child = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            told, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            told, _ = child.communicate()
            late = f"not done after {limit_s:g} s, "
    stages = [line[6:] for line in told.splitlines() if line.startswith("STAGE ")]
    if child.returncode and not late:
        print(log.read_text(errors="replace")[-6000:], file=sys.stderr)
    return f"{late}exit code {child.returncode}, while {stages[-1] if stages else 'importing'}"


def _last_error(log: Path) -> str:
    from mirage.serve.process import last_error

    return last_error(log) or "it wrote no error"


def _without_waits(command: list[str]) -> list[str]:
    """The same with the worker that tests have for it."""
    place = command.index("--worker-cls") + 1
    return [*command[:place], WITHOUT_WAITS[command[place]], *command[place + 1 :]]


def need_vllm() -> None:
    if find_spec("vllm") is None:
        raise Skipped("vLLM is not installed")


def _config(dry: bool, *, way: str) -> Config:
    from mirage.config import Config
    from mirage.demo.models import make_models

    folder = make_models(_models(dry), which=(FAMILY,), layer_bytes=LAYER_BYTES[dry])[FAMILY]
    device: dict[str, Any] = {"kind": "cuda", "memory": "2GiB"}
    device = {"kind": "host", "memory": "96MiB"} | ON_HOST[way] if dry else device | ON_GPU[way]
    tenant = {
        "name": "small",
        "model": folder,
        "share": 100,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        # Or later rounds would compute other batches than the first.
        "engine_args": {"enable_prefix_caching": False},
    }
    content = {"device": device, "dtype": "float32", "policy": "mirage", "tenants": [tenant]}
    return Config.model_validate(content)


@cache
def _fit(dry: bool, *, way: str) -> Fit:
    from mirage.serve.preflight import fit_config

    return fit_config(_config(dry, way=way))["small"]


def _models(dry: bool) -> Path:
    """A folder for each size. What the models compute is the same circuit."""
    return MODELS if dry else MODELS / "large"


@cache
def _prompts() -> list[list[int]]:
    from mirage.demo.models import circuit_of

    _config(True, way=EAGERLY)
    rng, known = random.Random(5), circuit_of(MODELS / FAMILY).vocabulary
    return [[rng.randrange(10, known) for _ in range(length)] for length in LENGTHS]


@cache
def _exact() -> list[list[int]]:
    from mirage.demo.models import circuit_of

    circuit = circuit_of(MODELS / FAMILY)
    return [circuit.generate(prompt, TOKENS) for prompt in _prompts()]
