"""Requests that decode together in an engine of this process, whose steps are timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

CONTEXT = 64
"""Tokens of a prompt."""


class Decoding:
    """vLLM's engine, which gets batches of requests one after the other."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._begun = engine, 0

    def steps(
        self, batch: int, tokens: int, before: Callable[[int], None] = lambda step: None
    ) -> list[float]:
        """Let `batch` new requests decode `tokens` tokens each; returns the seconds of each step,
        from the end of the step before. `before` is called before each step with its number, from 0
        on.
        """
        self._begin(batch, tokens)
        took, last = [], time.perf_counter()
        while self._engine.has_unfinished_requests():
            before(len(took))
            self._engine.step()
            now = time.perf_counter()
            took.append(now - last)
            last = now
        return took

    def _begin(self, batch: int, tokens: int) -> None:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        self._begun += 1
        for index in range(batch):
            prompt = [10 + (7 * index + position) % 50 for position in range(CONTEXT)]
            self._engine.add_request(f"{self._begun}-{index}", {"prompt_token_ids": prompt}, params)


def say(stage: str) -> None:
    """Tell the parent process what this process does now."""
    print(f"STAGE {stage}", flush=True)
