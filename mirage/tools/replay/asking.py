"""Fields of a completion request, including vLLM's own as far as a server accepts them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNKNOWN_FIELD = (400, 422)
"""HTTP statuses with which servers refuse a field that they do not know."""
OF_VLLM: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
"""Fields of vLLM: the first makes an output as long as in the trace; the second returns token ids,
since different tokens may have the same text.
"""
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
"""Request for token counts of prompt and output, a later addition to OpenAI's API."""


@dataclass(frozen=True)
class Manner:
    """Fields of a request beyond those that every OpenAI-compatible server accepts."""

    fields: tuple[str, ...] = (*OF_VLLM, *USAGE)

    def body(self, model: str, prompt: str, output_tokens: int) -> dict[str, Any]:
        """Body of a greedy, streamed completion of at most `output_tokens` tokens."""
        asked = {"model": model, "prompt": prompt, "max_tokens": output_tokens}
        more = {key: value for key, value in (OF_VLLM | USAGE).items() if key in self.fields}
        return asked | {"temperature": 0, "stream": True} | more

    def without(self) -> list[str]:
        """Fields of the full manner that this one leaves out."""
        return [field for field in FULL.fields if field not in self.fields]

    def simpler(self, refusal: str) -> Manner | None:
        """Manner to try after a refusal, whose text may name the field that is not accepted.

        A named field is left out alone; otherwise vLLM's own fields are left out first, then the
        rest. None if there is no field left to leave out.
        """
        named = [field for field in self.fields if field in refusal]
        unnamed = [field for field in self.fields if field in OF_VLLM] or list(self.fields)
        gone = named or unnamed
        return Manner(tuple(f for f in self.fields if f not in gone)) if gone else None


FULL = Manner()


def consequence(without: list[str]) -> str:
    """Sentence on the consequences for the figures if a server refuses these fields."""
    meanings = {
        "ignore_eos": "outputs may end before the trace's length",
        "return_token_ids": "texts are compared, not tokens",
        "stream_options": "the server's chunks are counted as tokens, and no prompt's tokens",
    }
    told = "; ".join(meanings[field] for field in without)
    return f"the server refuses {', '.join(without)}: {told}"
