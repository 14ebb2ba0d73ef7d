"""Child process: engines that fall asleep under load and wake. Prints facts as JSON.

python sleeping.py MODELS SCENE   SCENE: one of `SCENES`

Every text is compared with what the model says when the engine does not sleep.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import expert_run
import tiered
import tiny

from mirage.engine.tiers import present
from mirage.geometry import asleep_bytes, footprint
from mirage.protocol import Alive, Allotment, Report, Turn
from mirage.tools.demo.models import circuit_of, make_models
from vmm.driver import OutOfMemory

EXTENTS, REQUESTS, TOKENS, TIMES = 48, 5, 40, 20
Says = Callable[[list[int]], list[int]]
"""The answer to a prompt, `TOKENS` long."""


class Sleeper:
    """An engine that the test steps itself, and its control server."""

    def __init__(self, llm: Any, says: Says | None = None) -> None:
        self.llm, self.scheduler = llm, tiny.scheduler_of(llm)
        self.shape, self.revision, self.named = self.scheduler.shape, 0, 0
        self.prompts: dict[str, list[int]] = {}
        """Prompts of unfinished requests, by request name."""
        self.answers: list[tuple[list[int], list[int]]] = []
        self.says = says

    # -- requests -----------------------------------------------------------------------

    def ask(self, batch: Sequence[list[int]], tokens: int = TOKENS) -> list[str]:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        names = []
        for prompt in batch:
            self.named += 1
            names.append(str(self.named))
            self.prompts[names[-1]] = prompt
            self.llm.llm_engine.add_request(names[-1], {"prompt_token_ids": prompt}, params)
        return names

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            for out in self.llm.llm_engine.step():
                if out.finished:
                    name = out.request_id.split("-")[0]
                    answer = list(out.outputs[0].token_ids)
                    self.answers.append((self.prompts.pop(name), answer))

    def until(self, done: Callable[[], bool], most_s: float = 60.0) -> None:
        until = time.monotonic() + most_s
        while not done():
            assert time.monotonic() < until, self.report()
            self.step()

    def finish(self) -> int:
        """Run until all requests are answered, check the answers, and return their number."""
        self.until(lambda: not self.prompts)
        answers, self.answers = self.answers, []
        if self.says is not None:
            for prompt, answer in answers:
                assert answer == self.says(prompt)[: len(answer)], prompt
        return len(answers)

    # -- messages -----------------------------------------------------------------------

    def report(self) -> Report:
        report: Report = self.scheduler.report()
        return report

    def turn(self, holds: bool, *, drain: bool = False) -> None:
        self.scheduler.mailbox.post(Turn(holds, drain))

    def sleep(self) -> None:
        shape = self.shape
        layers_remapped, extents = shape.movable_layers, min(1, shape.max_extents)
        self._allot(layers_remapped, 0, extents, 0, asleep_bytes(shape), asleep=True)

    def wake(
        self,
        layers_remapped: int = 0,
        stream_slots: int = 0,
        extents: int = EXTENTS,
        experts: int = 0,
    ) -> None:
        grant = footprint(self.shape, layers_remapped, extents, experts)
        self._allot(
            layers_remapped, stream_slots if layers_remapped else 0, extents, experts, grant
        )

    def wholly_awake(self) -> None:
        """Wait until all memory is back. A wake brings layers and KV memory for one request; the
        rest comes later.
        """
        report = self.report()
        assert report.kv_extents >= self.shape.min_extents and not report.asleep, report
        until = time.monotonic() + 60
        while self.report().kv_extents < EXTENTS:
            assert time.monotonic() < until, self.report()
            self.scheduler.mailbox.post(Alive())

    def fills_alone(self) -> None:
        """Check that an engine without requests makes rounds by itself until all memory is back."""
        while self.scheduler.fills_alone():
            self.scheduler.mailbox.post(Alive())
        assert self.report().kv_extents == EXTENTS, self.report()

    def _allot(
        self,
        layers_remapped: int,
        stream_slots: int,
        extents: int,
        experts: int,
        grant: int,
        *,
        asleep: bool = False,
    ) -> None:
        self.revision += 1
        self.scheduler.mailbox.post(
            Allotment(
                self.revision,
                layers_remapped,
                stream_slots,
                extents,
                grant,
                experts=experts,
                asleep=asleep,
            )
        )

    def fall_asleep(self) -> None:
        """Put the engine to sleep, and check that it holds only the memory of a sleeping engine and
        runs no step.
        """
        self.sleep()
        self.until(lambda: self.report().asleep)
        self.sleeps()

    def sleeps(self) -> None:
        report, memory = self.report(), self.scheduler.worker.memory
        held = asleep_bytes(self.shape)
        assert report.held_bytes == memory.held_bytes(0, 0) == held, report
        assert (report.layers_remapped, report.stream_slots, report.experts) == (
            self.shape.movable_layers,
            0,
            0,
        )
        assert report.kv_extents == 1 and not report.running and not report.kv_used_extents
        assert report.waiting == len(self.prompts)
        self.check()
        steps = self.scheduler.fence.scheduled
        if self.prompts:
            self.step(2)
        assert self.scheduler.fence.scheduled == steps and self.report().asleep

    def check(self) -> None:
        self.scheduler.kv.blocks.check_integrity()
        self.scheduler.worker.memory.check_integrity()
        self.scheduler.worker.memory.self_check()

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


def drawn(count: int, length: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 90) for _ in range(length + 5 * i)] for i in range(count)]


# -- scenes -----------------------------------------------------------------------------


def in_the_middle(engine: Sleeper, *wakes: dict[str, int]) -> dict[str, Any]:
    """Scene: sleep while several requests run and a step is about to be executed, then wake with
    each of `wakes`.
    """
    executor = engine.llm.llm_engine.engine_core.engine_core.model_executor
    execute, during = executor.execute_model, list[bool]()

    def sleeping(*args: Any, **kwargs: Any) -> Any:
        executor.execute_model = execute
        engine.sleep()
        during.append(engine.report().asleep)
        return execute(*args, **kwargs)

    for number, awake in enumerate(wakes):
        engine.ask(drawn(REQUESTS, 60, seed=number))
        engine.step(12)
        running = engine.report().running
        assert running == REQUESTS, engine.report()
        executor.execute_model = sleeping
        engine.until(lambda: engine.report().asleep)
        engine.sleeps()
        engine.wake(**awake)
        report = engine.report()
        there = report.layers_remapped, report.experts, report.asleep
        assert there == (awake.get("layers_remapped", 0), awake.get("experts", 0), False), report
        if number % 2:  # else requests run while the rest comes
            engine.wholly_awake()
        assert engine.finish() == REQUESTS
        engine.wholly_awake()
        engine.check()
    return {"asleep_in_a_step": any(during), "times": len(during)}


def under_load(engine: Sleeper, seed: int) -> dict[str, Any]:
    """Scene: sleep and wake `TIMES` times at random, while requests come and go."""
    rng, shape = random.Random(seed), engine.shape
    answered = slept = 0
    for number in range(TIMES):
        engine.ask(drawn(rng.randrange(3), rng.randrange(20, 120), seed=1000 + number))
        engine.step(rng.randrange(6))
        engine.sleep()
        if rng.random() < 0.8:
            engine.until(lambda: engine.report().asleep)
            engine.sleeps()
            slept += 1
        else:
            engine.step(rng.randrange(2))
        engine.ask(drawn(rng.randrange(2), 40, seed=2000 + number))
        stream_slots = rng.choice((1, 2))
        layers_remapped = rng.randrange(max(1, shape.movable_layers - stream_slots))
        experts = 0 if layers_remapped else rng.randrange(shape.movable_experts + 1)
        engine.wake(
            layers_remapped, stream_slots, rng.randrange(shape.min_extents, EXTENTS), experts
        )
        engine.step(rng.randrange(4))
        engine.check()
    engine.wake()
    answered += engine.finish()
    engine.check()
    return {"slept": slept, "answered": answered}


def aborted(engine: Sleeper) -> dict[str, Any]:
    """Scene: abort a request while the engine is asleep."""
    names = engine.ask(drawn(3, 60, seed=5))
    engine.step(8)
    engine.fall_asleep()
    engine.llm.llm_engine.abort_request(names[:1])
    del engine.prompts[names[0]]
    engine.step()
    waiting = engine.report().waiting
    engine.sleeps()
    engine.wake()
    return {"waiting": waiting, "answered": engine.finish()}


def idle(engine: Sleeper) -> None:
    """Scene: sleep and wake without requests, by messages alone."""
    for layers_remapped in (0, 1 if engine.shape.movable_layers else 0):
        engine.sleep()
        engine.sleeps()
        engine.wake(layers_remapped, 1)
        engine.fills_alone()
    engine.sleep()
    engine.wake()
    engine.ask(drawn(2, 60, seed=6))
    assert not engine.scheduler.fills_alone(), "steps bring what it lacks"
    engine.finish()
    engine.wholly_awake()


def refused(engine: Sleeper) -> None:
    """Scene: the device refuses memory twice when the engine wakes without requests. No step would
    ask again; signs of life make it do so.
    """
    memory = engine.scheduler.worker.memory
    map_extents, refusals = memory.map_extents, [OutOfMemory("held by others")] * 2

    def maps(extents: list[int]) -> Any:
        if refusals:
            raise refusals.pop()
        return map_extents(extents)

    engine.sleep()
    engine.sleeps()
    memory.map_extents = maps
    engine.wake()
    memory.map_extents = map_extents
    assert engine.report().kv_extents < EXTENTS and not refusals
    until = time.monotonic() + 60
    while engine.report().kv_extents < EXTENTS:
        assert time.monotonic() < until, engine.report()
        time.sleep(0.05)
        engine.scheduler.mailbox.post(Alive())
    engine.check()


def in_turns(engine: Sleeper) -> dict[str, Any]:
    """Scene: give and take turns in several orders around sleeps."""
    engine.turn(True)
    engine.ask(drawn(REQUESTS, 60, seed=7))
    engine.step(10)
    engine.turn(False, drain=True)
    drains = engine.report().holds_turn
    engine.fall_asleep()
    asleep = engine.report().holds_turn
    engine.turn(False, drain=True)
    engine.wake()
    steps = engine.scheduler.fence.scheduled
    engine.step(2)
    awake = engine.report().holds_turn or engine.scheduler.fence.scheduled != steps
    engine.turn(True)
    engine.step(10)
    engine.turn(False)
    engine.fall_asleep()
    engine.turn(True)
    engine.sleeps()
    engine.wake()
    return {"drains": drains, "asleep": asleep, "awake": awake, "answered": engine.finish()}


def found_again(engine: Sleeper) -> dict[str, Any]:
    """Scene: a conversation's second turn finds its prefix in the tier after a sleep, and sleeps
    while it runs.
    """
    tiers = present.tiers()
    assert tiers is not None and engine.says is not None
    (first,) = drawn(1, 200, seed=9)
    engine.ask([first])
    engine.finish()
    engine.fall_asleep()
    engine.wake()
    asked = [*first, *engine.says(first), *drawn(1, 30, seed=10)[0]]
    computed = engine.scheduler.counts.tokens
    engine.ask([asked])
    engine.step(5)
    engine.fall_asleep()
    engine.wake()
    engine.finish()
    return {
        "computed": engine.scheduler.counts.tokens - computed,
        "asked": len(asked),
        "new": 30 + TOKENS,
        "extent_tokens": engine.shape.extent_blocks * engine.shape.block_tokens,
        "hits": sum(tiers.counts.hits.values()),
    }


# -- engines ----------------------------------------------------------------------------


def above_a_pool(models: Path) -> dict[str, Any]:
    """Facts of an engine above a host pool, under temporal sharing."""
    path = make_models(models / "demo", which=("llama",), layers=4)["llama"]
    llm = tiny.make_llm(
        path,
        mirage={"base_blocks": EXTENTS, "tier_socket": "the tests'", "temporal": True},
        dtype="float32",
        worker_cls=tiered.WORKER,
    )
    circuit = circuit_of(path)
    engine = Sleeper(llm, lambda prompt: list(circuit.generate(prompt, TOKENS)))
    facts: dict[str, Any] = {
        "asynchronous": llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
        "in_turns": in_turns(engine),
        "in_the_middle": in_the_middle(engine, {}, {"layers_remapped": 2, "stream_slots": 1}),
        "found_again": found_again(engine),
        "under_load": under_load(engine, seed=1),
        "aborted": aborted(engine),
    }
    idle(engine)
    engine.close()
    return facts


def mixture(models: Path) -> dict[str, Any]:
    """Facts of a mixture whose experts move, under spatial sharing. Its texts are compared with
    those of the same engine before it sleeps.
    """
    llm = tiny.make_llm(
        expert_run.make_mixture("mixtral", models),
        mirage={"base_blocks": EXTENTS, "experts": True},
        dtype="float32",
        worker_cls=tiny.POISONING,
    )
    engine = Sleeper(llm)
    batches = [drawn(REQUESTS, 60, seed=number) for number in range(4)]
    known: dict[tuple[int, ...], list[int]] = {}
    for batch in batches:
        engine.ask(batch)
        engine.until(lambda: not engine.prompts)
    known = {tuple(prompt): answer for prompt, answer in engine.answers}
    engine.answers.clear()
    engine.says = lambda prompt: known[tuple(prompt)]
    wakes = {}, {"experts": 5}, {"layers_remapped": 2, "stream_slots": 2}, {"experts": 1}
    facts = {
        "in_the_middle": in_the_middle(engine, *wakes),
        "experts": engine.shape.movable_experts,
    }
    engine.says = None  # of other prompts: that they end
    facts["under_load"] = under_load(engine, seed=2)
    engine.close()
    return facts


def layers_that_stay(models: Path) -> dict[str, Any]:
    """Facts of an engine under policy pooled, which gives up only KV memory."""
    path = make_models(models / "demo", which=("llama",), layers=4)["llama"]
    llm = tiny.make_llm(path, mirage={"base_blocks": EXTENTS, "policy": "pooled"}, dtype="float32")
    circuit = circuit_of(path)
    engine = Sleeper(llm, lambda prompt: list(circuit.generate(prompt, TOKENS)))
    facts = {"in_the_middle": in_the_middle(engine, {}), "movable": engine.shape.movable_layers}
    refused(engine)
    idle(engine)
    engine.close()
    return facts


def two_in_flight(models: Path) -> dict[str, Any]:
    """Facts of an engine with two steps in flight, as on a GPU; each is computed when its output is
    awaited.
    """
    import deferred

    deferred.schedule_asynchronously()
    deferred.defer_forwards()
    path = make_models(models / "demo", which=("llama",), layers=4)["llama"]
    worker = "mirage.engine.cpu_worker.DeferredWorker"
    llm = tiny.make_llm(path, mirage={"base_blocks": EXTENTS}, dtype="float32", worker_cls=worker)
    assert llm.llm_engine.engine_core.engine_core.batch_queue_size == 2
    circuit = circuit_of(path)
    engine = Sleeper(llm, lambda prompt: list(circuit.generate(prompt, TOKENS)))
    in_flight = list[int]()
    for number in range(4):
        engine.ask(drawn(REQUESTS, 60, seed=number))
        engine.step(10 + number)
        fence = engine.scheduler.fence
        in_flight.append(fence.scheduled - fence.processed)
        engine.fall_asleep()
        engine.wake(layers_remapped=number % 3, stream_slots=1)
        engine.finish()
    facts = {"in_flight": in_flight, "under_load": under_load(engine, seed=3)}
    engine.close()
    return facts


def beside_gpu(models: Path) -> dict[str, Any]:
    """Facts of an engine with memory of the driver's stand-in, whose pieces stream."""
    from identity import PAGE, compute_beside_gpu

    compute_beside_gpu()
    path = make_models(models / "demo", which=("llama",), layers=4)["llama"]
    settings = {"base_blocks": EXTENTS, "page": PAGE, "device": "cuda", "pieces": True}
    llm = tiny.make_llm(path, mirage=settings, dtype="float32")
    circuit = circuit_of(path)
    engine = Sleeper(llm, lambda prompt: list(circuit.generate(prompt, TOKENS)))
    facts = {
        "pieces": engine.scheduler.worker.memory.pieces,
        "in_the_middle": in_the_middle(engine, {}, {"layers_remapped": 2, "stream_slots": 1}),
    }
    idle(engine)
    engine.close()
    return facts


SCENES = {
    each.__name__: each
    for each in (above_a_pool, mixture, layers_that_stay, two_in_flight, beside_gpu)
}


def main(models: str, scene: str) -> None:
    print(json.dumps(SCENES[scene](Path(models))))


if __name__ == "__main__":
    main(*sys.argv[1:])
