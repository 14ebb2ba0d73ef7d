"""Child process: one engine, the same requests again and again while its memory is moved by hand.

python -m benchmarks.gpu.engine_run SPEC.json OUT.json

SPEC has these keys:

- `command`: command line of the server that `mirage serve` would start;
- `prompts`: lists of tokens;
- `tokens`: the number of tokens of each answer;
- `rounds`: for each round a number of layers that are away, -1 for all but one, or "moving": every
  few steps all layers are given away and the KV cache grows, or all come back.

The current round is printed on standard output, so that the parent knows where a failed run ended.

- With `arrivals` (the step before which each prompt comes; `tokens` is then a list as long) the KV
  cache follows the requests instead, see `waves`.
- With `gated` no graph of a whole step is replayed in any round, see `engine_memory.in_pieces`.
- With `batches` instead, memory stays, and the steps of that many decoding requests are timed. Then
  `command` may also be that of plain vLLM, and `away` is the number of layers that are away. See
  `layers_run` for `moves` beside them, `meeting` for `number`, and `switching` for `switch`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.gpu import layers_run, meeting, switching
from benchmarks.gpu.decoding import Decoding, say
from benchmarks.gpu.engine_memory import ALL_BUT_ONE, Memory, in_pieces
from benchmarks.gpu.waves import WAVES, Follower, Request, requests
from mirage.serve.launch import launcher

OTHERWISE = {
    "moves": layers_run.measured,
    "number": meeting.measured,
    "switch": switching.measured,
}
"""Measurements by the name that a specification gives."""
SERVER_ONLY = ("--uds", "--uvicorn-log-level", "--disable-uvicorn-access-log")
MOVING = "moving"
EVERY, MORE_EXTENTS = 4, 4
TOP = 5


def run(engine: Any, spec: dict[str, Any], before_step: Callable[[int], None]) -> list[Any]:
    """Tokens and top log-probabilities of each prompt, in order."""
    coming = deque(sorted(enumerate(requests(spec)), key=lambda numbered: numbered[1].at))
    done: dict[str, Any] = {}
    step = 0
    while coming or engine.has_unfinished_requests():
        while coming and coming[0][1].at <= step:
            _add(engine, *coming.popleft())
        before_step(step)
        done |= {out.request_id.split("-")[0]: out for out in engine.step() if out.finished}
        step += 1
    return [_said(done[str(index)].outputs[0]) for index in range(len(spec["prompts"]))]


def _add(engine: Any, index: int, request: Request) -> None:
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=request.tokens, temperature=0, ignore_eos=True, detokenize=False, logprobs=TOP
    )
    engine.add_request(str(index), {"prompt_token_ids": request.prompt}, params)


def _said(output: Any) -> Any:
    top = [sorted((t, lp.logprob) for t, lp in each.items()) for each in output.logprobs or []]
    return [list(output.token_ids), top]


def one_round(engine: Any, memory: Memory, spec: dict[str, Any], what: Any) -> list[Any]:
    if what == MOVING:
        said = run(engine, spec, lambda step: _move(memory, step))
        memory.hold(0, memory.base)
    else:
        memory.hold(memory.layers(what), memory.base)
        memory.settle()
        said = run(engine, spec, lambda step: None)
    memory.scheduler.worker.memory.check_integrity()
    return said


def _move(memory: Memory, step: int) -> None:
    if step % EVERY:
        return
    if step // EVERY % 2:
        memory.hold(0, memory.base)
    else:
        memory.hold(memory.layers(ALL_BUT_ONE), memory.base + MORE_EXTENTS)


def made(command: list[str]) -> Any:
    """vLLM's engine for the command line of its server. Raises `RuntimeError` for options that it
    does not know.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    words = command[command.index(launcher.SERVER[-1]) + 1 :]
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    known, unknown = parser.parse_known_args(words)
    if strange := [w for w in unknown if w.startswith("--") and w not in SERVER_ONLY]:
        raise RuntimeError(f"vLLM's engine knows no {', '.join(strange)}")
    return LLMEngine.from_engine_args(EngineArgs.from_cli_args(known))


def step_times(engine: Any, batches: list[int], steps: int) -> dict[str, float]:
    """Median seconds of a decode step, by the number of requests in it."""
    decoding, found = Decoding(engine), {}
    for batch in batches:
        say(f"decoding, {batch} requests")
        found[str(batch)] = statistics.median(decoding.steps(batch, steps))
    return found


def moved(engine: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Outputs of each round, with layers and KV memory moved by this process."""
    scheduler = engine.engine_core.engine_core.scheduler
    memory = Memory(scheduler)
    rounds = []
    with in_pieces(scheduler.worker.memory) if spec.get("gated") else nullcontext():
        for what in spec["rounds"]:
            say(f"requests, layers away: {what}")
            rounds.append(one_round(engine, memory, spec, what))
    streamer = scheduler.worker.memory.streamer
    return {
        "rounds": rounds,
        "compiled": scheduler.worker.memory.compiled,
        "layers": memory.shape.layers,
        "layers_remapped": memory.most_remapped,
        "extents": [memory.base, memory.most_extents],
        "bytes_streamed": streamer.bytes_streamed if streamer else 0,
        "t_load_s": scheduler.worker.times.layer_load_s,
        "t_compute_s": scheduler.worker.times.layer_compute_s,
    }


def followed(engine: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Outputs of each round, with the KV cache at rest or following the requests."""
    memory = Memory(engine.engine_core.engine_core.scheduler)
    rounds, counts = [], []
    for what in spec["rounds"]:
        say(f"requests in waves, KV memory: {what}")
        follower = Follower(memory, requests(spec), follows=what == WAVES)
        rounds.append(run(engine, spec, follower))
        counts.append(follower.counts())
        memory.scheduler.worker.memory.check_integrity()
    return {"rounds": rounds, "counts": counts}


def main(spec_file: str, out_file: str) -> None:
    spec = json.loads(Path(spec_file).read_text())
    say("starting")
    begun = time.perf_counter()
    engine = made(spec["command"])
    started_s = time.perf_counter() - begun
    found = _found(engine, spec)
    say("stopping")
    found |= {
        "started_s": started_s,
        "eager": bool(engine.vllm_config.model_config.enforce_eager),
    }
    engine.engine_core.shutdown()
    Path(out_file).write_text(json.dumps(found))
    say("stopped")


def _found(engine: Any, spec: dict[str, Any]) -> dict[str, Any]:
    for name, measured in OTHERWISE.items():
        if name in spec:
            return measured(engine, spec)
    if "batches" in spec:
        if spec.get("away"):
            memory = Memory(engine.engine_core.engine_core.scheduler)
            memory.hold(spec["away"], memory.base, 2)
            memory.settle()
        return {"times": step_times(engine, spec["batches"], spec["tokens"])}
    return followed(engine, spec) if "arrivals" in spec else moved(engine, spec)


if __name__ == "__main__":
    main(*sys.argv[1:])
