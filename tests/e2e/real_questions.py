"""Usual requests to pretrained models: text, JSON, tools, log-probabilities, streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from questions import CITY, TOOLS, Server

from tests.real.chats import ALTERNATIVES, text
from tests.real.judging import Said, fork, said
from tests.real.models import GEMMA, SMOLLM

CAPITAL = "What is the capital of France?"
TRIP = "Plan a trip of three days to Rome."
CLOSE = 1e-3
"""Difference of two log-probabilities (natural logarithms) below which they count as equal; those
of an idle server differ by less.
"""

Question = Callable[[Server, str], Any]


def choices(server: Server, model: str, asked: str, **more: Any) -> Any:
    """Choices of the answer to `asked`: a chat, or a text for a model without a template."""
    status, answer = server.request("POST", *request(model, asked, **more))
    assert status == 200, answer
    return answer["choices"]


def request(model: str, asked: str, **more: Any) -> tuple[str, dict[str, Any]]:
    common = {"model": model, "max_tokens": 40, "temperature": 0, **more}
    if model == SMOLLM:
        return "/v1/chat/completions", common | {"messages": [{"role": "user", "content": asked}]}
    return "/v1/completions", common | {"prompt": text([asked], ())}


def words(choice: Any) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


# Each gives what must be equal whoever serves it, and checks what must hold anyway.


def known(server: Server, model: str) -> Any:
    (choice,) = choices(server, model, CAPITAL, stop=["\n"])
    assert choice["finish_reason"] == "stop" and "Paris" in words(choice), choice
    return words(choice)


def stop(server: Server, model: str) -> Any:
    whole = words(choices(server, model, TRIP)[0])
    word = whole.split()[5]
    (choice,) = choices(server, model, TRIP, stop=[word])
    assert (choice["finish_reason"], words(choice)) == ("stop", whole[: whole.index(word)])
    return words(choice)


def streamed(server: Server, model: str) -> Any:
    whole = words(choices(server, model, TRIP)[0])
    status, lines = server.request("POST", *request(model, TRIP, stream=True))
    events = [line[6:] for line in lines.decode().splitlines() if line.startswith("data: ")]
    assert status == 200 and events.pop() == "[DONE]"
    parts = [choice for event in events for choice in json.loads(event)["choices"]]
    pieces = [p["delta"].get("content") or "" if "delta" in p else p["text"] for p in parts]
    assert "".join(pieces) == whole
    return whole


def drawn(server: Server, model: str) -> Any:
    several = choices(server, model, TRIP, n=3, temperature=0.9, top_p=0.95, seed=11)
    texts = [words(choice) for choice in sorted(several, key=lambda c: c["index"])]
    assert len(set(texts)) == 3
    return texts


def probable(server: Server, model: str) -> Any:
    how: dict[str, Any] = {"logprobs": ALTERNATIVES, "return_tokens_as_token_ids": True}
    if model == SMOLLM:
        how |= {"logprobs": True, "top_logprobs": ALTERNATIVES}
    return said(choices(server, model, TRIP, **how)[0])


def schema(server: Server, model: str) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": CITY}}
    (choice,) = choices(server, model, TRIP, response_format=form)
    answer = json.loads(words(choice))
    assert answer["city"] in ("Rome", "Oslo") and answer["days"] <= 9
    return words(choice)


def tool(server: Server, model: str) -> Any:
    return _called(server, model, {"type": "function", "function": {"name": "time"}}, {"time"})


def any_tool(server: Server, model: str) -> Any:
    return _called(server, model, "required", {"time", "weather"})


def _called(server: Server, model: str, choice: Any, names: set[str]) -> Any:
    how = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 120}
    (answer,) = choices(server, model, TRIP, **how)
    calls = [call["function"] for call in answer["message"]["tool_calls"]]
    assert calls and {call["name"] for call in calls} <= names
    assert all(json.loads(call["arguments"])["city"] in ("Rome", "Oslo") for call in calls)
    return calls


def no_template(server: Server, model: str) -> Any:
    """Status and message for a chat with a model without a template, which must be refused in
    vLLM's own words.
    """
    chat = {"model": model, "messages": [{"role": "user", "content": CAPITAL}]}
    status, answer = server.request("POST", "/v1/chat/completions", chat)
    assert 400 <= status < 500, answer
    return status, answer["error"]["message"]


BOTH: tuple[Question, ...] = (known, stop, streamed, drawn, probable, schema)
QUESTIONS: dict[str, dict[str, Question]] = {
    SMOLLM: {each.__name__: each for each in (*BOTH, tool, any_tool)},
    GEMMA: {each.__name__: each for each in (*BOTH, no_template)},
}
KINDS = [(model, kind) for model, kinds in QUESTIONS.items() for kind in kinds]


def alike(one: Any, other: Any) -> bool:
    """True if two answers are equal, and their log-probabilities nearly."""
    if not isinstance(one, Said):
        return bool(one == other)
    return fork(one, other) is None and all(
        abs(value - theirs[token]) < CLOSE
        for mine, theirs in zip(one.likely, other.likely, strict=True)
        for token, value in mine.items()
        if token in theirs
    )
