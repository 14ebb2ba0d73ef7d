"""Requests that come in waves, and a KV cache that grows for them and shrinks after them.

Two requests decode all the time. Beside them many long ones come, for which extents are mapped.
When these have ended and their extents are unmapped, a few short ones come into the rows of block
tables that the long ones have left.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it needs more than a machine with a GPU has
    from benchmarks.gpu.engine_memory import Memory

REST, WAVES = "at rest", "following"
LEAD = 4
"""Steps that memory is there before the requests that need it, or they would wait for it and be
computed in other batches."""
APART, NUMBER = 40, 6
"""Steps from one wave to the next, and how many there are."""
ALL_THE_WHILE = ((90, 0), (133, 0))
LONG = tuple((prompt, 12 + 4 * i) for i, prompt in enumerate((170, 150, 131, 160, 97, 128)))
SHORT = tuple((prompt, 20 + 3 * i) for i, prompt in enumerate((1, 9, 16, 33)))
"""Tokens of the prompt and of the answer, of each request of a wave; an answer of 0 tokens lasts to
the end."""


@dataclass(frozen=True)
class Request:
    """A request that comes before step `at`: its prompt as token ids, and the number of tokens to
    answer with."""

    at: int
    prompt: list[int]
    tokens: int


def requests(spec: dict[str, Any]) -> list[Request]:
    """Requests in `engine_run`'s specification; without the key `arrivals` all come before the
    first step."""
    prompts = spec["prompts"]
    arrivals = spec.get("arrivals", [0] * len(prompts))
    tokens = spec["tokens"] if "arrivals" in spec else [spec["tokens"]] * len(prompts)
    return [Request(*each) for each in zip(arrivals, prompts, tokens, strict=True)]


def asked(words: range) -> dict[str, Any]:
    """Part of the specification: two requests that run all the time, and the waves, with prompts
    drawn from the token ids `words`.
    """
    rng = random.Random(7)
    end = NUMBER * APART
    sizes = [(0, prompt, end) for prompt, _ in ALL_THE_WHILE]
    for wave in range(NUMBER):
        sizes += [(wave * APART, *size) for size in (SHORT if wave % 2 else LONG)]
    prompts = [[rng.choice(words) for _ in range(prompt)] for _, prompt, _ in sizes]
    arrivals, tokens = [size[0] for size in sizes], [size[2] for size in sizes]
    return {"prompts": prompts, "arrivals": arrivals, "tokens": tokens}


class Follower:
    """Function called before each step. With `follows` it grows or shrinks the KV cache to what the
    requests will need; without, the KV cache has room for all of them from the start.
    """

    def __init__(self, memory: Memory, requests: list[Request], *, follows: bool) -> None:
        self._memory, self._requests, self._follows = memory, requests, follows
        self._held = 0
        self._steps = self._grown = self._shrunk = 0
        self._seen: list[int] = []
        if not follows:
            self._hold(map(_size, requests))
        else:
            self._hold(_size(request) for request in requests if request.at == 0)
        memory.settle()

    def __call__(self, step: int) -> None:
        scheduler = self._memory.scheduler
        self._steps += 1
        self._count(decoding=bool(scheduler.running))
        if self._follows:
            here = [r.num_prompt_tokens + r.max_tokens for r in scheduler.requests.values()]
            soon = [_size(r) for r in self._requests if step < r.at <= step + LEAD]
            self._hold([*here, *soon])
            self._count(decoding=bool(scheduler.running))

    def counts(self) -> dict[str, int]:
        """Number of steps, fewest and most extents, and number of extents mapped and unmapped while
        requests decoded.
        """
        return {
            "steps": self._steps,
            "fewest": min(self._seen),
            "most": max(self._seen),
            "mapped": self._grown,
            "unmapped": self._shrunk,
        }

    def _hold(self, sizes: Iterable[int]) -> None:
        """Hold KV memory for requests of these numbers of tokens, for the null block, and one
        extent more.
        """
        shape = self._memory.shape
        blocks = 1 + sum(-(-size // shape.block_tokens) + 1 for size in sizes)
        extents = min(-(-blocks // shape.extent_blocks) + 1, shape.max_extents)
        if extents != self._held:
            self._held = extents
            self._memory.hold(0, extents)

    def _count(self, *, decoding: bool) -> None:
        """Count the extents that were mapped or unmapped since the last call, if requests were
        decoding.
        """
        mapped = len(self._memory.scheduler.worker.memory.kv.extents.mapped)
        if decoding and self._seen:
            self._grown += max(0, mapped - self._seen[-1])
            self._shrunk += max(0, self._seen[-1] - mapped)
        self._seen.append(mapped)


def _size(request: Request) -> int:
    return len(request.prompt) + request.tokens
