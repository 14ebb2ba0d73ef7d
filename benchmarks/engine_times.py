"""How long the steps of one real engine take: the child process of `crosscheck.py`.

python benchmarks/engine_times.py CONFIG TENANT OUT.json

The engine is the one that `mirage serve` would start for that tenant, policy mirage, with all
the KV cache that it could ever hold and nothing remapped, stepped in this process. Each sample
is one step: what it computed, in the simulator's words, and the seconds of processor that its
thread took, which other work on the machine lengthens little. All is measured in several
passes, and of each sample the quickest is kept: the median of a pass that was least disturbed.
"""

from __future__ import annotations

import os

from mirage.geometry import footprint

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from host_loads import FEW, MANY, Load

from mirage import config as configuration
from mirage.config import Config, Policy
from mirage.protocol import Allotment
from mirage.serve import launcher
from mirage.serve.fit import Fit
from mirage.serve.preflight import fit_config

PREFILLS = (4, 16, 32, 64, 96, 128, 192, 256, 320)
"""Tokens of a prompt that is computed alone."""
PROMPTS = ((2, 128), (3, 128), (2, 320), (3, 320))
"""Prompts in one step, and tokens of each."""
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (16, 128, 288)
MIXED = ((1, 128), (4, 128), (4, 256), (8, 64), (8, 256))
"""Sequences that decode while a prompt of so many tokens is computed."""
DECODE_STEPS = 8
ROUNDS = 3
PASSES = 4
ROUNDS_OF_LOAD = 4
COPIES = 40
MOVES = 12
SERVER_ONLY = ("--uds", "--uvicorn-log-level", "--disable-uvicorn-access-log")


@dataclass(frozen=True)
class Sample:
    """One step: `simulate.roofline.Work` and the seconds it took."""

    sequences: int
    context: int
    prefill: int
    area: int
    cpu_s: float
    wall_s: float


class Stepper:
    """A real engine in this process, stepped by hand."""

    def __init__(self, config: Config, tenant: str) -> None:
        self.fit = _roomy(fit_config(config)[tenant])
        self.most = config.tenant(tenant).max_num_seqs
        self.longest = config.tenant(tenant).max_model_len
        self._engine = _make(
            launcher.command(config, config.tenant(tenant), self.fit, Path(), None)
        )
        self.scheduler = self._engine.engine_core.engine_core.scheduler
        self._core = self._engine.engine_core.engine_core
        self._rng = random.Random(tenant)
        self._count = 0
        self._scheduled = (0, 0, 0, 0)
        self._timed = (0.0, 0.0)
        self._watch()

    def add(self, prompt: int, output: int) -> None:
        """One more request; lengths in tokens. No two prompts have a beginning in common."""
        from vllm import SamplingParams

        self._count += 1
        tokens = [self._rng.randrange(10, 90) for _ in range(prompt)]
        params = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, detokenize=False)
        self._engine.add_request(str(self._count), {"prompt_token_ids": tokens}, params)

    def step(self) -> Sample:
        """One step of the engine core; its output is processed off the clock."""
        self._engine.step()
        return Sample(*self._scheduled, *self._timed)

    def drain(self) -> Iterator[Sample]:
        """Step until nothing is left."""
        while self._engine.has_unfinished_requests():
            yield self.step()

    @property
    def running(self) -> int:
        """Requests that are not finished."""
        return int(self._engine.get_num_unfinished_requests())

    def _watch(self) -> None:
        """Time each step of the core, and note what was scheduled in it."""
        schedule, step = self.scheduler.schedule, self._core.step_fn

        def noting(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._scheduled = _work(output, self.scheduler.requests)
            return output

        def timing() -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            result = step()
            self._timed = (time.thread_time() - cpu, time.perf_counter() - wall)
            return result

        self.scheduler.schedule, self._core.step_fn = noting, timing


def _make(command: list[str]) -> Any:
    """vLLM's engine from the command line of its server."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    words = command[command.index(launcher.SERVER[-1]) + 1 :]
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    known, unknown = parser.parse_known_args(words)
    strange = [w for w in unknown if w.startswith("--") and w not in SERVER_ONLY]
    assert not strange, strange
    return LLMEngine.from_engine_args(EngineArgs.from_cli_args(known))


def _roomy(fit: Fit) -> Fit:
    """With all KV blocks that there could ever be, from the start."""
    grant = fit.parameter_bytes + fit.max_blocks * fit.block_bytes
    return replace(fit, base_blocks=fit.max_blocks, grant_bytes=grant)


def _work(output: Any, requests: dict[str, Any]) -> tuple[int, int, int, int]:
    """(sequences, context, prefill, area) as `simulate.roofline.Work` counts them."""
    new = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    before = new | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    sequences = context = prefill = area = 0
    for name, tokens in output.num_scheduled_tokens.items():
        computed = before[name]
        if tokens == 1 and computed >= requests[name].num_prompt_tokens:
            sequences += 1
            context += computed
        else:
            prefill += tokens
            area += tokens * (2 * computed + tokens + 1)
    return sequences, context, prefill, area


def _median(samples: list[Sample]) -> Sample:
    """One sample for several of nearly the same work: medians throughout."""
    columns = zip(*(asdict(s).values() for s in samples), strict=True)
    middle = [statistics.median(column) for column in columns]
    return Sample(*(round(v) for v in middle[:4]), *middle[4:])


# -- what is measured -------------------------------------------------------------------------


def prefills(engine: Stepper) -> Iterator[Sample]:
    """Prompts alone and together, one step each."""
    for count, tokens in [(1, tokens) for tokens in PREFILLS] + list(PROMPTS):
        rounds = []
        for _ in range(ROUNDS):
            for _ in range(count):
                engine.add(tokens, 1)
            rounds.append(next(engine.drain()))
            list(engine.drain())
        yield _median(rounds)


def decodes(engine: Stepper) -> Iterator[Sample]:
    """Batches of equal contexts, `DECODE_STEPS` steps each."""
    for batch in sorted({min(batch, engine.most) for batch in BATCHES}):
        for context in CONTEXTS:
            for _ in range(batch):
                engine.add(context, 2 * DECODE_STEPS)
            steps = [s for s in engine.drain() if s.sequences == batch and not s.prefill]
            yield _median(steps[:DECODE_STEPS])


def mixtures(engine: Stepper) -> Iterator[Sample]:
    """One prompt among sequences that decode."""
    for batch, tokens in MIXED:
        rounds = []
        for _ in range(ROUNDS):
            for _ in range(batch):
                engine.add(64, 12)
            while (last := engine.step()).sequences < batch or last.prefill:
                pass
            engine.add(tokens, 1)
            rounds.append(engine.step())
            list(engine.drain())
        yield _median(rounds)


def request_s(engine: Stepper, load: Load) -> float:
    """Processor seconds of a request, of which `load.at_once` are always running."""
    requests = ROUNDS_OF_LOAD * load.at_once
    left, spent = requests, 0.0
    while left or engine.running:
        while left and engine.running < load.at_once:
            engine.add(load.prompt, load.output)
            left -= 1
        spent += engine.step().cpu_s
    return spent / requests


def load_s(engine: Stepper) -> float:
    """T_T: median seconds to load one layer from its master."""
    streamer = engine.scheduler.memory.streamer

    def load(number: int) -> None:
        layer = streamer.layers[number % len(streamer.layers)]
        streamer.copies.copy(layer.range.address, layer.master, layer.nbytes)
        streamer.copies.synchronize()

    return _median_s(load, COPIES)


def apply_s(engine: Stepper) -> float:
    """Median seconds in which an idle engine acts on an allotment that moves layers and KV."""
    scheduler, shape = engine.scheduler, engine.scheduler.shape
    full = shape.max_extents

    def move(number: int) -> None:
        alpha, extents = (2, full) if number % 2 else (0, full - 16)
        grant = footprint(shape, alpha, extents)
        scheduler.reconciler.aim(Allotment(number + 1, alpha, 2, extents, grant))

    seconds = _median_s(move, MOVES)
    move(MOVES)
    return seconds


def _median_s(act: Callable[[int], None], times: int) -> float:
    taken = []
    for number in range(times):
        start = time.perf_counter()
        act(number)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def measure(config: Config, tenant: str) -> dict[str, Any]:
    """All that the profile needs to know of one engine; seconds and bytes."""
    engine = Stepper(config, tenant)
    engine.add(64, 8)
    list(engine.drain())  # first use
    passes = [[*prefills(engine), *decodes(engine), *mixtures(engine)] for _ in range(PASSES)]
    samples = [min(same, key=lambda s: s.cpu_s) for same in zip(*passes, strict=True)]
    layer = engine.scheduler.memory.streamer.layers[0]
    return {
        "tenant": tenant,
        "shape": msgspec.to_builtins(engine.scheduler.shape),
        "samples": [asdict(sample) for sample in samples],
        "request_s": min(request_s(engine, FEW) for _ in range(PASSES)),
        "crowded_s": min(request_s(engine, MANY.limited(engine.most)) for _ in range(PASSES)),
        "layer_bytes": layer.nbytes,
        "load_s": load_s(engine),
        "apply_s": apply_s(engine),
    }


def main() -> None:
    path, tenant, out = sys.argv[1:]
    config = configuration.load(Path(path)).model_copy(update={"policy": Policy.MIRAGE})
    Path(out).write_text(json.dumps(measure(config, tenant), indent=1) + "\n")


if __name__ == "__main__":
    main()
