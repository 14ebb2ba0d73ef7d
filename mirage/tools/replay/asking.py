"""What a completion is asked with: fields of vLLM's, as far as a server takes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNKNOWN_FIELD = (400, 422)
"""The statuses with which servers refuse a field that they do not know."""
OF_VLLM: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
"""The first makes an output as long as the trace says; the second lets outputs be compared where
different tokens read the same."""
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
"""How many tokens prompt and output had; a later addition to OpenAI's own API."""


@dataclass(frozen=True)
class Manner:
    """Fields beside those that every server of OpenAI's completions takes."""

    fields: tuple[str, ...] = (*OF_VLLM, *USAGE)

    def body(self, model: str, prompt: str, output_tokens: int) -> dict[str, Any]:
        """A greedy, streamed completion of at most so many tokens."""
        asked = {"model": model, "prompt": prompt, "max_tokens": output_tokens}
        more = {key: value for key, value in (OF_VLLM | USAGE).items() if key in self.fields}
        return asked | {"temperature": 0, "stream": True} | more

    def without(self) -> list[str]:
        """What this leaves out of the first manner."""
        return [field for field in FULL.fields if field not in self.fields]

    def simpler(self, refusal: str) -> Manner | None:
        """What to try after a refusal, in which the server may name the field that it minds.

        One that it names goes alone; else first vLLM's fields, then the rest. None is left when
        only fields remain that every server takes.
        """
        named = [field for field in self.fields if field in refusal]
        unnamed = [field for field in self.fields if field in OF_VLLM] or list(self.fields)
        gone = named or unnamed
        return Manner(tuple(f for f in self.fields if f not in gone)) if gone else None


FULL = Manner()


def consequence(without: list[str]) -> str:
    """What it means for the figures that a server refuses these fields."""
    meanings = {
        "ignore_eos": "outputs may end before the trace's length",
        "return_token_ids": "texts are compared, not tokens",
        "stream_options": "the server's chunks are counted as tokens, and no prompt's tokens",
    }
    told = "; ".join(meanings[field] for field in without)
    return f"the server refuses {', '.join(without)}: {told}"
