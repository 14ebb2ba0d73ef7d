"""One request of a trace, and the error of a trace that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.errors import InputRefused

MAX_TOKENS = 10_000_000
"""Most tokens of a prompt or an output; more count as a damaged row."""


class TraceError(InputRefused):
    """Error: a trace cannot be replayed. The message is one line; for a faulty row it has the file
    and the row's place in the file.
    """


class EndlessTrace(TraceError):
    """Error: a trace is endless, and the part to use was not specified."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: its arrival in seconds since the first row (or the window's start), lengths in
    tokens.

    Fields after the lengths are set if the file has them.
    """

    arrival_s: float
    context_tokens: int
    output_tokens: int
    session: str | None = None
    """Name of the conversation that the request belongs to; None for no conversation."""
    prefix_hashes: tuple[int, ...] = ()
    """One hash for each `hash_tokens` tokens of the prompt, from its beginning. Prompts with the
    same first hashes begin with the same tokens.
    """
    hash_tokens: int = 0
    prompt: str | None = None
    """Text of the prompt; for a later turn of a session only the text that this turn adds."""
    model: str | None = None
    """Name of the requested model, in a file with requests to several."""
