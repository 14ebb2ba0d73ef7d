"""Schema of a synthetic trace's file. docs/traces.md explains it with examples."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mirage.config import ConfigError, Count, Strict
from mirage.workload.formats.request import MAX_TOKENS
from mirage.workload.lengths import Lengths, lengths

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, strict=True)]
FewestMost = Annotated[tuple[Tokens, Tokens], Field(strict=False)]


def _known(name: str) -> str:
    try:
        lengths(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return name


LengthsName = Annotated[str, AfterValidator(_known)]
"""Name of a distribution in `configs/lengths.yaml`."""


class LengthBounds(Strict):
    """Fewest and most tokens of a request; drawn numbers beyond them are cut to them."""

    prompt: FewestMost = (1, MAX_TOKENS)
    """Fewest and most prompt tokens of a request; of a session's turn only those that it adds."""
    output: FewestMost = (1, MAX_TOKENS)

    @model_validator(mode="after")
    def _are_in_order(self) -> LengthBounds:
        for name in ("prompt", "output"):
            least, most = getattr(self, name)
            if least > most:
                raise ValueError(f"{name} [{least}, {most}]: write [FEWEST, MOST]")
        return self


class Prefixes(Strict):
    """Prefixes that requests share, as system prompts: `count` prefixes of `tokens` tokens each."""

    count: Count
    tokens: Tokens
    share: float = Field(default=1.0, ge=0, le=1)
    """Part of the requests, or of the sessions, that begin with one of the prefixes."""


class Sessions(Strict):
    """Sessions: the prompt of each turn begins with the previous prompt, has then as many tokens as
    the answer to that had, and ends with new ones.
    """

    turns: float = Field(ge=1, le=10_000)
    """Mean number of turns; the distribution is geometric."""
    think_s: float = Field(ge=0, le=1e6)
    """Mean seconds between the arrivals of two turns; the distribution is exponential."""


def _check_shape(shape: Lengths) -> None:
    """Raises `ValueError` for values with which floating-point numbers would overflow."""
    for key, most in (("mean", MAX_TOKENS), ("sigma", 10)):
        for what in ("prompt", "output"):
            value = getattr(shape, f"{what}_{key}")
            if value > most:
                raise ValueError(f"shape.{what}_{key} {value:g}: use at most {most:,}")


class Synthetic(Strict):
    """A synthetic trace: its arrivals, lengths, shared prefixes, and end."""

    kind: Literal["synthetic"]
    rate: float = Field(gt=0, le=1e6)
    """Requests a second on average, counting turns of sessions."""
    arrivals: Literal["poisson", "gamma"] = "poisson"
    """Distribution of gaps between requests, or between the beginnings of sessions."""
    cv: float | None = Field(default=None, ge=0.05, le=100)
    """Coefficient of variation of gamma gaps: their standard deviation divided by their mean."""
    lengths: LengthsName | None = None
    """Name of the distribution of all lengths; `sharegpt` if `mix` and `shape` are left out too."""
    mix: dict[LengthsName, Annotated[float, Field(gt=0, le=1e6)]] | None = None
    """Names of distributions with weights: each request draws one of them."""
    shape: Lengths | None = None
    """A distribution given by its numbers."""
    bounds: LengthBounds = LengthBounds()
    prefixes: Prefixes | None = None
    sessions: Sessions | None = None
    requests: Count | None = None
    duration_s: float | None = Field(default=None, gt=0, le=1e11)
    """End of the trace in seconds. It ends here or after `requests` requests, whichever comes
    first.
    """
    seed: int | None = None
    """Seed of this trace; if left out, that of the command."""

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> Synthetic:
        if (self.arrivals == "gamma") != (self.cv is not None):
            raise ValueError("cv and arrivals: gamma need each other: write both or neither")
        named = [key for key in ("lengths", "mix", "shape") if getattr(self, key) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)}: all of them give lengths, write one")
        if self.mix == {}:
            raise ValueError("mix is empty: name lengths with their weights, or leave it out")
        if self.shape is not None:
            _check_shape(self.shape)
        return self

    @property
    def shapes(self) -> tuple[list[Lengths], list[float]]:
        """Distributions to choose from, and their weights."""
        if self.shape is not None:
            return [self.shape], [1.0]
        weights = self.mix or {self.lengths or "sharegpt": 1.0}
        return [lengths(name) for name in weights], list(weights.values())
