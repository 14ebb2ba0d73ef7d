"""Requests whose structured output cannot be followed: they are answered with status 400 and the
reason.

vLLM checks the form of a schema, regex, grammar or tag in its API server. Whatever then fails in
the core, because the grammar does not compile or admits no token, ends the request as an internal
error of the server. Here the core adds the reason to such an output (`tell`), and the API server
raises it as an error of the request (`answer_with_reasons`), on every route and in streams too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import wraps
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.v1.engine import FinishReason
from vllm.v1.engine.output_processor import OutputProcessor

from mirage.problems import one_line

MARK = "mirage-grammar: "
"""Beginning of the `stop_reason` of an output that failed by its grammar; the reason follows."""
PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: \(.*?\) is false: )?", re.DOTALL)
"""Beginning of xgrammar's messages: the time, the file and line of its source code, and the check
that failed, if it was one."""
NO_TOKEN = "it admits no token at this place"


def asked(scheduler: Any, scheduled: Any) -> Mapping[str, Any]:
    """Return the requests with structured output, by id; none if no grammar can fail in this step's
    output."""
    if not (scheduler.grammar_compile_error_reqs or scheduled.has_structured_output_requests):
        return {}
    return {
        name: request
        for name, request in scheduler.requests.items()
        if request.structured_output_request is not None
    }


def tell(outputs: Iterable[Any], requests: Mapping[str, Any], manager: Any) -> None:
    """Add the reason to each output with which one of `requests` fails by its own grammar.

    `manager` is vLLM's of structured output.
    """
    for output in outputs:
        request = requests.get(output.request_id)
        if request is None or output.finish_reason is not FinishReason.ERROR:
            continue
        if why := _why(request.structured_output_request.grammar, manager):
            output.stop_reason = MARK + why


def answer_with_reasons() -> None:
    """Replace `OutputProcessor.process_outputs` in this process, vLLM's API server, by a function
    that raises the reasons as errors of the requests. A second call does nothing."""
    original = OutputProcessor.process_outputs
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def process_outputs(self: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        told = [
            (state, output.stop_reason)
            for output in engine_core_outputs
            if _has_reason(output)
            and (state := self.request_states.get(output.request_id)) is not None
        ]
        done = original(self, engine_core_outputs, *args, **kwargs)
        for state, reason in told:
            if state.queue is not None:
                state.queue.put(refusal(reason))
        return done

    OutputProcessor.process_outputs = process_outputs


def refusal(reason: str) -> VLLMValidationError:
    """Return the error of a request whose output has this `stop_reason`."""
    why = reason.removeprefix(MARK)
    return VLLMValidationError(f"the structured output of this request cannot be followed: {why}")


def words(error: Exception) -> str:
    """Return the message of a grammar compiler's error in one line, without the time and the place
    in the compiler's source code with which it begins (`PLACE`); the name of the error's type if
    nothing is left."""
    return one_line(PLACE.sub("", str(error))) or type(error).__name__


def _has_reason(output: Any) -> bool:
    reason = output.stop_reason
    return (
        output.finish_reason is FinishReason.ERROR
        and isinstance(reason, str)
        and reason.startswith(MARK)
    )


def _why(grammar: Any, manager: Any) -> str | None:
    """Return the reason why `grammar` cannot be followed; None if it can, so that the fault is
    another."""
    if isinstance(grammar, Exception):
        return words(grammar)
    if grammar is None or grammar.is_terminated():
        return None
    mask = manager.backend.allocate_token_bitmask(1)
    grammar.fill_bitmask(mask, 0)
    return None if mask.any() else NO_TOKEN
