"""Check of a tenant's `defaults`: vLLM's own classes of requests have to accept them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMError

from mirage.problems import nearest, one_line, shown

CHAT = {"messages": [{"role": "user", "content": "a"}]}


class Form(NamedTuple):
    """Class of vLLM's (`form`) that parses the requests of one route, and the smallest body that it
    accepts (`least`): the required keys, each with a value."""

    route: str
    form: type[BaseModel]
    least: Mapping[str, Any]
    samples: bool
    """True if the class has vLLM's method `to_sampling_params`, which makes sampling parameters
    from a largest number of tokens and the defaults."""


FORMS = (
    Form("/v1/completions", CompletionRequest, {"prompt": "a"}, True),
    Form("/v1/chat/completions", ChatCompletionRequest, CHAT, True),
    Form("/v1/responses", ResponsesRequest, {"input": "a"}, True),
    Form("/v1/messages", AnthropicMessagesRequest, CHAT | {"model": "a", "max_tokens": 1}, False),
)
"""Routes that generate tokens, as `mirage.serve.access.bounds` has them. A refusal names the first
of them that refuses a value."""


def refusal(defaults: Mapping[str, Any]) -> str | None:
    """Return the reason why a request with these values would be refused, or would not use one of
    them; None if there is none."""
    return next(_problems(defaults), None)


def _problems(defaults: Mapping[str, Any]) -> Iterator[str]:
    known = {name for form in FORMS for name in _names(form)}
    for name in defaults.keys() - known:
        yield f"defaults.{name}: no request has this key: check its spelling{nearest(name, known)}"
    for form in FORMS:
        own = {name: value for name, value in defaults.items() if name in _names(form)}
        if own and (found := _problem(form, own)) is not None:
            name, why = found
            value = f" is {shown(own[name])}" if name in own else ""
            yield f"defaults{f'.{name}' if name else ''}{value}: {form.route} refuses it: {why}"


def _names(form: Form) -> set[str]:
    fields = form.form.model_fields
    return {*fields, *(field.alias for field in fields.values() if field.alias)}


def _problem(form: Form, own: Mapping[str, Any]) -> tuple[str, str] | None:
    """Key and reason of the first problem of a request with the values `own`; the key is empty if
    vLLM does not tell it."""
    try:
        request: Any = form.form.model_validate({**form.least, **own})
        if form.samples:
            request.to_sampling_params(1, {})
    except ValidationError as error:
        problem = error.errors()[0]
        name = next((str(part) for part in problem["loc"] if part in own), "")
        return name, one_line(problem["msg"].removeprefix("Value error, "))
    except (VLLMError, ValueError, TypeError) as error:
        words = one_line(str(error))
        told = str(getattr(error, "parameter", None))
        return told if told in own else next((name for name in own if name in words), ""), words
    return None
