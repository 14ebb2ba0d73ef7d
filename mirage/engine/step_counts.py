"""Counts of what an engine computes, without its own first request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mirage.control.answers import Answered
from mirage.control.engine.fence import Fence
from mirage.engine import prefill


class StepCounts:
    """Steps, tokens and preemptions since the engine started."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._own_steps = 0
        self.paused = False
        """True while the engine computes its own first requests, which are not counted."""
        self.started = 0
        """Number of requests that began to run."""
        self.preemptions = 0
        self.tokens = 0
        """Number of scheduled tokens; drafts count once they are accepted."""
        self.prefill_tokens = 0
        self.recomputed_tokens = 0
        """Number of tokens that preempted requests had computed, and that they compute again."""
        self._lost: dict[str, int] = {}
        """Tokens that each preempted request had computed, until it runs again or has ended."""
        self.tokens_from_device = 0
        """Number of tokens that starting requests found in the device's prefix cache."""

    @property
    def steps(self) -> int:
        """Number of processed steps."""
        return 0 if self.paused else max(0, self._fence.processed - self._own_steps)

    def answered(self, begun: int) -> Answered:
        """Return the number of tokens of answers so far, and of requests that have ended; `begun`
        requests have begun to run and not ended."""
        return Answered(self.tokens - self.prefill_tokens, max(0, self.started - begun))

    def begin(self) -> None:
        """Count steps from now on; those before were the engine's own."""
        self.paused = False
        self._own_steps = self._fence.scheduled

    def preempted(self, request: Any) -> None:
        """Count a request of vLLM's that is about to be preempted."""
        self.preemptions += 1
        self._lost[request.request_id] = request.num_computed_tokens

    def scheduled(
        self, output: Any, requests: Mapping[str, Any], loaded_tokens: Callable[[str], int]
    ) -> None:
        """Count one output of vLLM's scheduler.

        `loaded_tokens` returns the number of loaded tokens of a request, which it need not compute.
        """
        if self.paused:
            return
        self.started += len(output.scheduled_new_reqs)
        drafts = output.scheduled_spec_decode_tokens
        self.tokens += output.total_num_scheduled_tokens - sum(map(len, drafts.values()))
        for request, found in prefill.starting(output):
            self.tokens_from_device += max(0, found - loaded_tokens(request))
            self.recomputed_tokens += max(0, self._lost.pop(request, 0) - found)
        for name in output.finished_req_ids:
            self._lost.pop(name, None)
        self.prefill_tokens += prefill.computed(output, requests)

    def computed(self, output: Any, sampled: Any) -> None:
        """Count the drafts of one output that were accepted, out of the model runner's output.

        A request samples one token more than it accepts. vLLM has removed the tokens after a stop.
        """
        if self.paused or not output.scheduled_spec_decode_tokens:
            return
        for name in output.scheduled_spec_decode_tokens:
            row = sampled.req_id_to_index.get(name)
            if row is not None and sampled.sampled_token_ids:
                self.tokens += max(0, len(sampled.sampled_token_ids[row]) - 1)
