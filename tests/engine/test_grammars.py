"""Requests whose grammar cannot be followed end with the reason, which reaches the client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

from mirage.engine import grammars

pytestmark = pytest.mark.engine

XGRAMMAR = (
    "[16:15:05] /project/cpp/grammar_functor.cc:2340: Check failed: (lower >= 0 && (upper == -1 "
    "|| upper >= lower)) is false: Invalid repetition range {-5, -1}\n"
)


class Grammar:
    """Grammar that admits only `tokens` next; `ended` if nothing may follow."""

    def __init__(self, *tokens: int, ended: bool = False) -> None:
        self.tokens, self.ended = tokens, ended

    def is_terminated(self) -> bool:
        return self.ended

    def fill_bitmask(self, mask: Any, row: int) -> None:
        mask[row] = sum(1 << token for token in self.tokens)


def request(grammar: Any) -> Any:
    return SimpleNamespace(structured_output_request=SimpleNamespace(grammar=grammar))


def told(grammar: Any, finish: FinishReason | None = FinishReason.ERROR) -> Any:
    backend = SimpleNamespace(allocate_token_bitmask=lambda rows: torch.full((rows, 1), -1))
    output = EngineCoreOutput("a", [], finish_reason=finish)
    grammars.tell([output], {"a": request(grammar)}, SimpleNamespace(backend=backend))
    return output.stop_reason


def test_a_grammar_that_does_not_compile_is_told_without_its_source_line() -> None:
    assert told(RuntimeError(XGRAMMAR)) == grammars.MARK + "Invalid repetition range {-5, -1}"
    assert told(ValueError("a\nb")) == grammars.MARK + "a b"
    assert told(ValueError()) == grammars.MARK + "ValueError"


def test_a_grammar_that_admits_nothing_is_told() -> None:
    assert told(Grammar()) == grammars.MARK + grammars.NO_TOKEN


@pytest.mark.parametrize("grammar", [Grammar(3), Grammar(ended=True), None])
def test_other_faults_stay_those_of_the_server(grammar: Any) -> None:
    assert told(grammar) is None
    assert told(RuntimeError("x"), FinishReason.LENGTH) is None


@pytest.mark.parametrize(
    ("scheduled", "failed", "names"),
    [(False, set(), []), (True, set(), ["a"]), (False, {"a"}, ["a"])],
)
def test_requests_are_looked_through_only_if_one_may_fail(
    scheduled: bool, failed: set[str], names: list[str]
) -> None:
    every = {"a": request(None), "b": SimpleNamespace(structured_output_request=None)}
    scheduler = SimpleNamespace(grammar_compile_error_reqs=failed, requests=every)
    step = SimpleNamespace(has_structured_output_requests=scheduled)
    assert list(grammars.asked(scheduler, step)) == names


@pytest.mark.parametrize(
    ("reason", "refused"), [(grammars.MARK + "why", True), ("a stop string", False), (7, False)]
)
def test_the_api_server_raises_the_reason_in_place_of_its_own_error(
    reason: Any, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[Any] = []
    monkeypatch.setattr(
        OutputProcessor, "process_outputs", lambda self, outputs, *more: passed.append(more)
    )
    grammars.answer_with_reasons()
    grammars.answer_with_reasons()  # a second time, which changes nothing
    queue = RequestOutputCollector(RequestOutputKind.DELTA, "a")
    processor: Any = SimpleNamespace(request_states={"a": SimpleNamespace(queue=queue)})
    output = EngineCoreOutput("a", [], finish_reason=FinishReason.ERROR, stop_reason=reason)
    gone = EngineCoreOutput("b", [], finish_reason=FinishReason.ERROR, stop_reason=reason)
    OutputProcessor.process_outputs(processor, [output, gone], 1.0)
    assert passed == [(1.0,)]
    if not refused:
        assert queue.get_nowait() is None
        return
    with pytest.raises(VLLMValidationError, match="cannot be followed: why"):
        queue.get_nowait()
