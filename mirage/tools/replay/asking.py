"""Fields of a completion request: vLLM's own, as far as a server takes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNKNOWN_FIELD = (400, 422)
"""The statuses with which servers refuse a field that they do not know."""
OF_VLLM: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
"""The first makes an output as long as the trace says; the second lets outputs be compared where
different tokens read the same."""
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
"""Request for the token counts of prompt and output, a later addition to OpenAI's own API."""


@dataclass(frozen=True)
class Manner:
    """Fields of a request beyond those that every OpenAI-compatible server takes."""

    fields: tuple[str, ...] = (*OF_VLLM, *USAGE)

    def body(self, model: str, prompt: str, output_tokens: int) -> dict[str, Any]:
        """Body of a greedy, streamed completion of at most `output_tokens` tokens."""
        asked = {"model": model, "prompt": prompt, "max_tokens": output_tokens}
        more = {key: value for key, value in (OF_VLLM | USAGE).items() if key in self.fields}
        return asked | {"temperature": 0, "stream": True} | more

    def without(self) -> list[str]:
        """Fields of the first manner that this one leaves out."""
        return [field for field in FULL.fields if field not in self.fields]

    def simpler(self, refusal: str) -> Manner | None:
        """Manner to try after a refusal, which may name the field that the server does not take.

        A named field goes alone; else vLLM's own fields go first, then the rest. None is returned
        when only fields remain that every server takes.
        """
        named = [field for field in self.fields if field in refusal]
        unnamed = [field for field in self.fields if field in OF_VLLM] or list(self.fields)
        gone = named or unnamed
        return Manner(tuple(f for f in self.fields if f not in gone)) if gone else None


FULL = Manner()


def consequence(without: list[str]) -> str:
    """Consequence for the figures if a server refuses these fields."""
    meanings = {
        "ignore_eos": "outputs may end before the trace's length",
        "return_token_ids": "texts are compared, not tokens",
        "stream_options": "the server's chunks are counted as tokens, and no prompt's tokens",
    }
    told = "; ".join(meanings[field] for field in without)
    return f"the server refuses {', '.join(without)}: {told}"
