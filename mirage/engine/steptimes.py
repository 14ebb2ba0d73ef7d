"""Step times of one real engine: the child process of `mirage profile`.

Question (see `mirage.tools.profile.engines`) and answer are in seconds, bytes, tokens. The engine
is the one that `mirage serve` would start, with as many KV blocks as possible, stepped in this
process. The question lists batches: prompts alone, sequences that decode, and both together. The
whole list is measured several times (`repetitions`), since a machine's speed drifts: for each batch
the answer has the median of its quickest repetition, and the times of all its steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

import msgspec

from mirage.engine.stepper import EngineStepper, Timed
from mirage.geometry import footprint
from mirage.processes.answering import answer
from mirage.protocol import Allotment

RUNNING = 64, 12
"""Prompt and output tokens of requests that decode while another prompt is computed."""
WARM = 64, 8
WARM_ROUNDS = 3
"""Number of first calls of what is measured (`_seconds`) whose times are dropped."""
SETTLED = 200
"""Number of steps after which a mixture that did not form is given up."""

Question = Mapping[str, Any]
Answer = dict[str, Any]


def prompts(engine: EngineStepper, asked: Question) -> Iterator[list[Timed]]:
    """Yield, for each (count, tokens) of the question, the first step of so many prompts of so many
    tokens each, once in each round."""
    for count, tokens in asked["prompts"]:
        rounds = []
        for _ in range(asked["rounds"]):
            for _ in range(count):
                engine.add(tokens, 1)
            rounds.append(next(engine.drain()))
            list(engine.drain())
        yield rounds


def decodes(engine: EngineStepper, asked: Question) -> Iterator[list[Timed]]:
    """Yield, for each (batch, context, output) of the question, the first steps in which so many
    sequences with equal contexts decode."""
    for batch, context, output in asked["decodes"]:
        for _ in range(batch):
            engine.add(context, output)
        full = [s for s in engine.drain() if s.sequences == batch and not s.prefill]
        yield full[: asked["decode_steps"]]


def mixtures(engine: EngineStepper, asked: Question) -> Iterator[list[Timed]]:
    """Yield, for each (batch, tokens) of the question, a step with one prompt of so many tokens
    among so many sequences that decode, once in each round. A round in which these do not all run
    together is left out."""
    for batch, tokens in asked["mixtures"]:
        rounds = []
        for _ in range(asked["rounds"]):
            for _ in range(batch):
                engine.add(*RUNNING)
            if any(s.sequences == batch and not s.prefill for s in islice(engine.drain(), SETTLED)):
                engine.add(tokens, 1)
                rounds.append(engine.step())
            list(engine.drain())
        yield rounds


def samples(engine: EngineStepper, asked: Question) -> list[Answer]:
    """Measure the whole list of batches in `asked`, `repetitions` times; return one sample for each
    batch.

    A sample has the batch's work and step seconds, as the median of its steps in its quickest
    repetition, and in `times_s` the seconds of all its steps. A batch that never formed is left
    out.
    """
    repetitions = [
        [*prompts(engine, asked), *decodes(engine, asked), *mixtures(engine, asked)]
        for _ in range(asked["repetitions"])
    ]
    clock = asked["clock"]
    found = []
    for same in zip(*repetitions, strict=True):
        medians = [_median(steps) for steps in same if steps]
        if medians:
            quickest = min(medians, key=lambda s: float(getattr(s, clock)))
            times = [getattr(step, clock) for steps in same for step in steps]
            found.append(asdict(quickest) | {"times_s": times})
    return found


def request_s(engine: EngineStepper, load: tuple[int, int, int], rounds: int, clock: str) -> float:
    """Return the step seconds per request while a constant number of requests runs: the sum over
    all steps, divided by the requests.

    `load` has that number, and the tokens of each prompt and output; `rounds` times as many
    requests are computed. `clock` names the field of `Timed` that is summed.
    """
    at_once, prompt, output = load
    requests = left = rounds * at_once
    spent = 0.0
    while left or engine.running:
        while left and engine.running < at_once:
            engine.add(prompt, output)
            left -= 1
        spent += float(getattr(engine.step(), clock))
    return spent / requests


def load_s(engine: EngineStepper, times: int) -> list[float]:
    """Return `times` measurements of T_T: seconds to load one layer from its master. Empty if no
    layer can move."""
    streamer = engine.scheduler.worker.memory.streamer
    if streamer is None:
        return []

    def load(number: int) -> None:
        layer = streamer.layers[number % len(streamer.layers)]
        streamer.load(layer)
        streamer.copies.synchronize()

    return _seconds(load, times)


def apply_s(engine: EngineStepper, times: int) -> list[float]:
    """Return `times` measurements of the seconds in which an idle engine obeys an allotment that
    moves layers and KV."""
    scheduler, shape = engine.scheduler, engine.scheduler.shape
    full = len(scheduler.worker.memory.kv.extents.mapped)
    fewer = max(shape.min_extents, full - min(16, full // 4))
    away = min(2, max(0, shape.movable_layers - 2))

    def move(number: int) -> None:
        remapped, extents = (away, full) if number % 2 else (0, fewer)
        slots = 2 if remapped else 0
        grant = footprint(shape, remapped, extents)
        scheduler.kv.reconciler.aim(Allotment(number + 1, remapped, slots, extents, grant))

    return _seconds(move, times)


def reserved_bytes(engine: EngineStepper) -> int:
    """Return the GPU memory in use, in bytes, that is neither parameters nor KV of ours; 0 if the
    device is host memory."""
    import torch

    memory = engine.scheduler.worker.memory
    if memory.settings.device != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return max(0, total - free - memory.outside_bytes - memory.pool.held_bytes)


def measure(asked: Question) -> Answer:
    """Return all that a profile contains of one engine."""
    engine = EngineStepper(asked["argv"], asked["tenant"])
    engine.add(*WARM)
    list(engine.drain())
    loads, rounds, clock = asked["loads"], asked["load_rounds"], asked["clock"]
    streamer = engine.scheduler.worker.memory.streamer
    return {
        "clock": clock,
        "samples": samples(engine, asked),
        "request_s": [
            min(request_s(engine, load, rounds, clock) for _ in range(asked["repetitions"]))
            for load in loads
        ],
        "shape": msgspec.to_builtins(engine.scheduler.shape),
        "reserved_bytes": reserved_bytes(engine),
        "layer_bytes": streamer.layers[0].nbytes if streamer else 0,
        "load_s": load_s(engine, asked["copies"]),
        "apply_s": apply_s(engine, asked["moves"]),
    }


def _median(steps: list[Timed]) -> Timed:
    """Return one sample for several of nearly the same work: the median of each field."""
    columns = zip(*(asdict(s).values() for s in steps), strict=True)
    middle = [statistics.median(column) for column in columns]
    return Timed(*(round(v) for v in middle[:4]), *middle[4:])


def _seconds(act: Callable[[int], None], times: int) -> list[float]:
    """Return the seconds of each of `times` calls of `act`, after some that do not count."""
    taken = []
    for number in range(WARM_ROUNDS + times):
        start = time.perf_counter()
        act(number)
        taken.append(time.perf_counter() - start)
    return taken[WARM_ROUNDS:]


if __name__ == "__main__":
    answer({"measure": measure})
