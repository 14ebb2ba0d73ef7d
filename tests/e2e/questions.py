"""Requests for the features of OpenAI's API, whose answers are the same every time."""

from __future__ import annotations

import json
from typing import Any, Protocol

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": CITY, "strict": True}}
    for name in ("weather", "time")
]
NO_SPACE = {str(ord(character)): -100 for character in " \t\r\n"}
"""Bias against blanks: a grammar allows blanks without end, and these models may choose them."""
TOOL = {"tools": TOOLS, "parallel_tool_calls": False, "logit_bias": NO_SPACE}
PROMPT = "The quick brown fox jumps over the lazy dog, " * 4
MESSAGES = [{"role": "user", "content": "What is the weather?"}]


class Server(Protocol):
    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]: ...


def complete(server: Server, model: str, **more: Any) -> Any:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0, **more}
    return _choices(server, "/v1/completions", body)


def chat(server: Server, model: str, **more: Any) -> Any:
    body = {"model": model, "messages": MESSAGES, "max_tokens": 120, "temperature": 0, **more}
    return _choices(server, "/v1/chat/completions", body)


def _choices(server: Server, path: str, body: Any) -> Any:
    status, answer = server.request("POST", path, body)
    assert status == 200, (body, answer)
    return answer["choices"]


# Each gives what must be equal whoever serves it, and checks what must hold anyway.


def greedy(server: Server, model: str) -> Any:
    return complete(server, model, max_tokens=40)[0]["text"]


def several(server: Server, model: str) -> Any:
    choices = complete(server, model, n=3, temperature=0.9, seed=11)
    texts = [c["text"] for c in sorted(choices, key=lambda c: c["index"])]
    assert len(set(texts)) == 3
    return texts


def seeded(server: Server, model: str) -> Any:
    return complete(server, model, temperature=1.0, top_p=0.9, seed=5)[0]["text"]


def logprobs(server: Server, model: str) -> Any:
    (choice,) = complete(server, model, logprobs=3)
    told = choice["logprobs"]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == 16
    return [told["tokens"], [round(value, 2) for value in told["token_logprobs"]]]


def echo(server: Server, model: str) -> Any:
    (choice,) = complete(server, model, echo=True, logprobs=1, max_tokens=4)
    assert choice["text"].startswith(PROMPT)
    assert choice["logprobs"]["token_logprobs"][0] is None
    return [choice["text"], [round(v, 2) for v in choice["logprobs"]["token_logprobs"][1:]]]


def stop(server: Server, model: str) -> Any:
    text = greedy(server, model)
    word = text[6:8]
    (choice,) = complete(server, model, max_tokens=40, stop=[word])
    assert (choice["finish_reason"], choice["text"]) == ("stop", text[: text.index(word)])
    return choice["text"]


def bias(server: Server, model: str) -> Any:
    (choice,) = complete(server, model, logit_bias={"65": 100, "66": -100})
    assert choice["text"] == "A" * 16
    return choice["text"]


def pattern(server: Server, model: str) -> Any:
    (choice,) = complete(server, model, structured_outputs={"regex": "[a-c]{5}-[0-9]{2}"})
    assert len(choice["text"]) == 8 and set(choice["text"][:5]) <= set("abc")
    assert choice["text"][5] == "-" and choice["text"][6:].isdigit()
    return choice["text"]


def schema(server: Server, model: str) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": CITY}}
    (choice,) = chat(server, model, response_format=form)
    answer = json.loads(choice["message"]["content"])
    assert answer["city"] in ("Rome", "Oslo") and answer["days"] <= 9
    return choice["message"]["content"]


def named_tool(server: Server, model: str) -> Any:
    wanted = {"type": "function", "function": {"name": "time"}}
    (choice,) = chat(server, model, **TOOL, tool_choice=wanted)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "time"
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    return call["function"]


def required_tool(server: Server, model: str) -> Any:
    (choice,) = chat(server, model, **TOOL, tool_choice="required")
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert calls and all(json.loads(c["arguments"])["city"] in ("Rome", "Oslo") for c in calls)
    return calls


CLOSE = {"pattern"}
"""Questions whose grammar leaves letters that the model likes equally little: the rounding of
another batch may choose another one, as it does on an Intel Xeon. What the form demands holds."""
QUESTIONS = {
    q.__name__: q
    for q in (
        *(greedy, several, seeded, logprobs, echo, stop, bias),
        *(pattern, schema, named_tool, required_tool),
    )
}
