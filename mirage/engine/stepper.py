"""A real engine in this process, advanced step by step, with each step timed and counted."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

FIRST_TOKEN, TOKENS = 10, 80
"""First token id for prompts, and number of ids: these are in every vocabulary, and not special."""
MOST_IDLE = 1000
"""Number of successive steps without computation after which an engine is taken to wait in vain."""
SERVER_ONLY = ("--uds", "--uvicorn-log-level", "--disable-uvicorn-access-log")


@dataclass(frozen=True)
class Timed:
    """One step: its work in tokens, with the fields of `mirage.simulate.roofline.Work`, and its
    seconds."""

    sequences: int
    context: int
    prefill: int
    area: int
    cpu_s: float
    """Processor seconds of the thread that computes, which other work on the machine lengthens only
    a little."""
    wall_s: float


class EngineStepper:
    """vLLM's engine in this process, without its HTTP server: it is made from the server's command
    line, and each call of `step` makes one step."""

    def __init__(self, argv: Sequence[str], seed: str) -> None:
        self._engine = _make(argv)
        self._core = self._engine.engine_core.engine_core
        self.scheduler = self._core.scheduler
        self._rng = random.Random(seed)
        self._count = 0
        self._scheduled = (0, 0, 0, 0)
        self._timed = (0.0, 0.0)
        self._idle = 0
        self._watch()

    def add(self, prompt: int, output: int) -> None:
        """Add a request; lengths in tokens. Prompts are random tokens, so none finds its blocks in
        the prefix cache."""
        from vllm import SamplingParams

        self._count += 1
        tokens = [FIRST_TOKEN + self._rng.randrange(TOKENS) for _ in range(prompt)]
        params = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, detokenize=False)
        self._engine.add_request(str(self._count), {"prompt_token_ids": tokens}, params)

    def step(self) -> Timed:
        """Make one step of the engine core and return it; the time to process its output is not
        included.

        Raise `RuntimeError` if nothing has been computed for `MOST_IDLE` steps.
        """
        self._scheduled = (0, 0, 0, 0)
        self._engine.step()
        self._idle = 0 if any(self._scheduled) else self._idle + 1
        if self._idle > MOST_IDLE:
            raise RuntimeError(f"{MOST_IDLE} steps computed nothing, {self.running} requests wait")
        return Timed(*self._scheduled, *self._timed)

    def drain(self) -> Iterator[Timed]:
        """Step until no request is left, and yield each step."""
        while self._engine.has_unfinished_requests():
            yield self.step()

    @property
    def running(self) -> int:
        """Number of unfinished requests, waiting ones included."""
        return int(self._engine.get_num_unfinished_requests())

    def _watch(self) -> None:
        """Time each step of the core, and note the work that was scheduled in it."""
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


def _make(argv: Sequence[str]) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    known, unknown = parser.parse_known_args(list(argv))
    strange = [w for w in unknown if w.startswith("--") and w not in SERVER_ONLY]
    if strange:
        raise ValueError(f"{strange[0]}: an engine without its server has no such argument")
    return LLMEngine.from_engine_args(EngineArgs.from_cli_args(known))


def _work(output: Any, requests: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return sequences, context, prefill and area of the scheduled work."""
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
