"""Child process's storm over a family of the zoo: all that moves memory does so at random.

Extents and layers come and go, the engine falls asleep and wakes; requests come, are preempted,
aborted and chunked, with two steps in flight. Below it is, by mode, a pool of the test, which
fills, evicts, shrinks, is late or silent, or loses blocks; or the real pool, whose peers are
revoked, whose host memory shrinks, and whose blocks go to a disk and come back. All answers are
compared with plain vLLM's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deferred import schedule_asynchronously
from tiered import WORKER, Above
from tiny import VOCABULARY, make_llm, run

from mirage.engine.tiers import present
from tests.zoo import Family, make

PLAIN, STORM, TIERS, SPOILED = "storm-plain", "storm", "storm-tiers", "storm-spoiled"
MODES = (PLAIN, STORM, TIERS, SPOILED)
STORMED = "tests.tampered.cpu_worker.StormedWorker"
COUNT = 48
MOST_PROMPT, MOST_TOKENS = 190, 60
BLOCKS = 512


def requests(seed: int) -> list[tuple[list[int], int]]:
    """Drawn requests (prompt, tokens). Many begin with one of four prefixes, and
    some come again.
    """
    rng = random.Random(seed)
    prefixes = [[rng.randrange(3, VOCABULARY) for _ in range(120)] for _ in range(4)]
    asked: list[tuple[list[int], int]] = []
    for _ in range(COUNT):
        own = [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 70))]
        prompt = [*rng.choice(prefixes)[: rng.randrange(121)], *own]
        if asked and rng.random() < 0.3:
            prompt = rng.choice(asked)[0]
        asked.append((prompt, rng.randrange(1, MOST_TOKENS)))
    return asked


def prove(family: Family, folder: Path, mode: str) -> dict[str, Any]:
    """Answers to all requests in a mode, and figures of what moved meanwhile."""
    schedule_asynchronously()
    path = make(family, folder)
    arguments = {"dtype": "float32", "max_num_batched_tokens": 64, "max_num_seqs": 8}
    arguments |= family.all_arguments(path)
    seed = len(family.name)
    if mode == PLAIN:
        llm = make_llm(path, blocks=BLOCKS, **arguments)
        return {"texts": reference(llm, seed)} | end(llm)
    settings = {"base_blocks": BLOCKS, "tier_socket": "the tests'"}
    worker = STORMED if mode == TIERS else WORKER
    llm = make_llm(path, blocks=BLOCKS, mirage=settings, worker_cls=worker, **arguments)
    if present.tiers() is None:
        return {"off": True} | end(llm)
    engine = Above(llm)
    if mode == SPOILED:
        spoil(engine)
    return (TiersStorm if mode == TIERS else Storm)(engine, seed).blow() | end(llm)


def reference(llm: Any, seed: int) -> list[Any]:
    """For each request plain vLLM's tokens, and for each token the difference between the two
    highest log-probabilities.
    """
    asked = requests(seed)
    said = run(llm, [prompt for prompt, _ in asked], MOST_TOKENS, logprobs=2)
    return [
        (tokens[:most], [abs(a[1] - b[1]) for a, b, *_ in likely[:most]])
        for (tokens, likely), (_, most) in zip(said, asked, strict=True)
    ]


def end(llm: Any) -> dict[str, Any]:
    """Shut the engine down."""
    llm.llm_engine.engine_core.shutdown()
    present.publish(None)
    return {}


def spoil(engine: Above) -> None:
    """Fault on purpose: change one byte of each block that goes down to the pool."""
    pool: Any = engine.pool
    commit: Callable[[Any], None] = pool.commit

    def spoiled(keys: Any) -> None:
        for key in (keys := list(keys)):
            at = pool._reserved[key] * pool.member.block_bytes
            pool._region[at + 3] ^= 0x40  # the exponent of a float
        commit(keys)

    pool.commit = spoiled


class Storm:
    """One engine above a pool, stepped by the test."""

    def __init__(self, engine: Above, seed: int) -> None:
        self.engine, self.rng = engine, random.Random(seed)
        scheduler = engine.scheduler
        per = scheduler.shape.extent_blocks
        one = -(-scheduler.groups.blocks(MOST_PROMPT + MOST_TOKENS) // per)
        self.least, self.most = one + 3, min(3 * one + 3, scheduler.shape.max_extents)
        self.asked = requests(seed)
        self.said: list[list[int] | None] = [None] * len(self.asked)
        self.live: set[int] = set()
        self.remapped_counts: set[int] = set()
        self.drowsy = False
        """While it is True no request is sent; when all that were sent have been answered, the
        engine sleeps.
        """
        self.slept = self.aborted = 0

    def blow(self) -> dict[str, Any]:
        """Run all requests while everything moves, then calm down; return answers and figures."""
        core, number = self.engine.llm.llm_engine, 0
        self.engine.allot(self.most)
        while number < len(self.asked) or self.drowsy or core.has_unfinished_requests():
            if self.drowsy and not core.has_unfinished_requests():
                self._sleep()
            if number < len(self.asked) and not self.drowsy and self.rng.random() < 0.3:
                self._ask(number)
                if number % 12 == 7:
                    self._abort(self.rng.choice(sorted(self.live)))
                number += 1
                self.drowsy = number % 12 == 0
            if self.live and self.rng.random() < 0.01:
                self._abort(self.rng.choice(sorted(self.live)))
            for out in core.step():
                which = int(out.request_id.split("-")[0])
                if out.finished and which in self.live:
                    self.live.remove(which)
                    self.said[which] = list(out.outputs[0].token_ids)
            self._disturb()
        self._calm()
        counts, pool = self.engine.counts, self.engine.pool
        return {
            "texts": self.said,
            "aborted": self.aborted,
            "slept": self.slept,
            "remapped_counts": sorted(self.remapped_counts),
            "hits": sum(counts.hits.values()),
            "stored": counts.stored_blocks,
            "evicted": pool.evicted,
            "preemptions": self.engine.scheduler.counts.preemptions,
            "failed_loads": counts.failed_loads,
        }

    def _ask(self, number: int) -> None:
        from vllm import SamplingParams

        prompt, tokens = self.asked[number]
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        core = self.engine.llm.llm_engine
        core.add_request(str(number), {"prompt_token_ids": prompt}, params)
        self.live.add(number)

    def _abort(self, number: int) -> None:
        self.engine.llm.llm_engine.abort_request([str(number)])
        self.live.remove(number)
        self.aborted += 1

    def _sleep(self) -> None:
        """Let all KV memory go and come back, so that all cached blocks are below
        the device only.
        """
        self.engine.allot(1)
        self.engine.allot(self.most)
        self.drowsy = False
        self.slept += 1

    def _disturb(self) -> None:
        rng, pool = self.rng, self.engine.pool
        if rng.random() < 0.1:
            memory = self.engine.scheduler.worker.memory
            most = max(0, self.engine.scheduler.shape.movable_layers - 2)
            remapped = rng.randrange(most + 1) if memory.streamer and rng.random() < 0.5 else 0
            self.engine.allot(rng.randrange(self.least, self.most + 1), remapped)
            self.remapped_counts.add(memory.layers_remapped)
        self._below(rng, pool)

    def _below(self, rng: random.Random, pool: Any) -> None:
        """Change what the pool does, at random."""
        if rng.random() < 0.03:
            pool.shrink(rng.choice((0, 40, 120, 4000)))
        pool.slow = rng.choice((0, 0, 3))
        pool.deep = rng.random() < 0.5
        pool.silent = rng.random() < 0.02
        pool.loses = rng.random() < 0.02

    def _calm(self) -> None:
        pool = self.engine.pool
        pool.silent = pool.loses = False
        self.engine.allot(self.most)
        self.engine.settle()


class TiersStorm(Storm):
    """Storm above the real pool, instead of one of the test."""

    def blow(self) -> dict[str, Any]:
        facts = super().blow()
        pool = self.engine.pool
        return facts | {"risen": pool.risen, "revocations": pool.revocations}

    def _below(self, rng: random.Random, pool: Any) -> None:
        if rng.random() < 0.03:
            pool.shrink(rng.choice((0, 8, 16, 16, 16)))
        if rng.random() < 0.03:
            pool.lend(rng.choice(("near", "far")), rng.choice((0, 4, 8)))
