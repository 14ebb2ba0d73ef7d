"""Chats of both models: the questions of each turn, and the requests that ask them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.real.models import SMOLLM

Body = dict[str, Any]

TOPICS = (
    *("the water cycle", "how bread rises", "why leaves turn red", "what a bank does"),
    *("the first railways", "how to plan a garden", "why the sky is blue", "how bees find flowers"),
    *("a day in Venice", "the rules of chess", "how glass is made", "what makes a good teacher"),
    *("how ships float", "the planets", "why we sleep", "how to cook rice"),
    *("a walk in the hills", "how a piano works", "the history of paper", "what volcanoes are"),
    *("how vaccines work", "a letter to a friend", "how maps are drawn", "why cats purr"),
)
"""Topics, one for each of 24 chats."""
SYSTEM = "You are a patient teacher. Answer in full sentences."
NEXT = ("Give me an example of that.", "And what do people often get wrong about it?")
"""Questions of the later turns."""
AGAINST_LOOPS = 1.2
"""A repetition penalty: small models chosen greedily soon say the same again and again."""
ALTERNATIVES = 5
"""Number of likeliest tokens that are told with each token."""


def first_words(topic: str) -> str:
    return f"Explain {topic} to someone who has never heard of it."


def body(model: str, topic: str, answers: Sequence[str], tokens: int) -> tuple[str, Body]:
    """Path and body of the turn after `answers`, which go into it as history.

    The answer has `tokens` tokens, the one of highest probability each time.
    """
    asked = [first_words(topic), *NEXT[: len(answers)]]
    common = {
        "model": model,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "repetition_penalty": AGAINST_LOOPS,
        "return_tokens_as_token_ids": True,
    }
    if model == SMOLLM:
        logprobs: Body = {"logprobs": True, "top_logprobs": ALTERNATIVES}
        return "/v1/chat/completions", common | logprobs | {"messages": messages(asked, answers)}
    return "/v1/completions", common | {"logprobs": ALTERNATIVES, "prompt": text(asked, answers)}


def messages(asked: Sequence[str], answers: Sequence[str]) -> list[Body]:
    """Messages of a chat, for a model with a chat template."""
    said: list[Body] = [{"role": "system", "content": SYSTEM}]
    for number, question in enumerate(asked):
        said.append({"role": "user", "content": question})
        said += [{"role": "assistant", "content": answer} for answer in answers[number:][:1]]
    return said


def text(asked: Sequence[str], answers: Sequence[str]) -> str:
    """Prompt for a model without a chat template; its tokenizer does not add ``<bos>``."""
    turns = [
        f"Question: {question}\nAnswer:{''.join(answers[number:][:1])}"
        for number, question in enumerate(asked)
    ]
    return "<bos>" + "\n".join(turns)
