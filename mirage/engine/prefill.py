"""Prompt tokens that a step of vLLM's computes, from its scheduler's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def starting(output: Any) -> Iterator[tuple[str, int]]:
    """Yield each request that begins, or begins again, with the number of tokens that it need not
    compute.

    These were found in the prefix cache, or loaded before the request began.
    """
    for new in output.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens
    cached = output.scheduled_cached_reqs
    for request, found in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        if request in cached.resumed_req_ids:
            yield request, found


def computed(output: Any, requests: Mapping[str, Any]) -> int:
    """Return the number of prompt tokens that the step computes, and of tokens of answers that a
    preempted request computes again.

    A request that only continues has one token in a step, and its drafts.
    """
    scheduled, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    if output.total_num_scheduled_tokens == len(scheduled):
        return sum(1 for name in scheduled if _in_prompt(requests.get(name)))
    total = 0
    for name, tokens in scheduled.items():
        own = tokens - len(drafts.get(name, ()))
        if own > 1 or _in_prompt(requests.get(name)):
            total += own
    return total


def _in_prompt(request: Any) -> bool:
    """True if the request is still in its prompt. vLLM has already counted this step's tokens as
    computed."""
    return request is not None and request.num_computed_tokens <= request.num_prompt_tokens
