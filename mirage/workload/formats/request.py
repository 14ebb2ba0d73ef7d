"""One request of a trace, and the error of a trace that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.errors import InputRefused

MAX_TOKENS = 10_000_000
"""More than this in one request is taken for a damaged row."""


class TraceError(InputRefused):
    """A trace that cannot be replayed; the message is one line with file and line number."""


class EndlessTrace(TraceError):
    """A trace without end, of which nobody said what part is meant."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Arrival in seconds since the first row (or the window's start), lengths in tokens.

    What follows the lengths is there if the file has it.
    """

    arrival_s: float
    context_tokens: int
    output_tokens: int
    session: str | None = None
    """Requests of one conversation have the same."""
    prefix_hashes: tuple[int, ...] = ()
    """One for each `hash_tokens` tokens of the prompt, from its beginning; where two requests
    begin with the same hashes, their prompts begin with the same tokens."""
    hash_tokens: int = 0
    prompt: str | None = None
    """The text that is asked; of a later turn of a session only what that turn adds."""
    model: str | None = None
    """Model that was asked, where one file has requests to several."""
