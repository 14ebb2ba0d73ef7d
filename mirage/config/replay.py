"""Section `replay`: the trace of ``mirage replay``, and its requests' tenants."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, model_validator

from mirage.config.strict import Strict

Weight = Annotated[float, Field(ge=0)]


class Traffic(Strict):
    """Distribution of a trace's requests over tenants (seeded; see docs/replaying.md).

    Trace time is cut into phases of `phase_s` seconds. In each phase one tenant, drawn in seeded
    order, is hot and gets `hot_share` (0 to 1) of the requests. The other tenants share the rest by
    their `weights`; a tenant that is not named there has weight 1.
    """

    phase_s: float = Field(default=20.0, ge=1e-3)
    hot_share: float = Field(default=0.8, ge=0, le=1)
    weights: dict[str, Weight] = Field(default_factory=dict)


class Replay(Strict):
    """Defaults of ``mirage replay``; its options override them."""

    trace: str | dict[str, str] = "sample"
    """Value of ``--trace``, or one for each tenant; files are relative to the configuration file's
    folder.
    """
    window: Annotated[tuple[float, float] | None, Field(strict=False)] = None
    time_scale: PositiveFloat = 1.0
    load: PositiveFloat | None = Field(default=None, le=100)
    """Mean arrival rate to which the gaps between requests are scaled, as a part of the machine's
    measured capacity: 1 is all of it. None: the gaps are not scaled.
    """
    think_s: float | None = Field(default=None, ge=0, le=1e6)
    """Least seconds from an answer to the next turn of its session; None: turns do not wait for
    answers.
    """
    length_scale: PositiveFloat = 1.0
    seed: int = 0
    traffic: Traffic = Traffic()
    request_timeout_s: PositiveFloat = 300.0

    @model_validator(mode="after")
    def _window_has_a_length(self) -> Replay:
        if self.window is not None and not 0 <= self.window[0] < self.window[1]:
            raise ValueError(
                f"window {list(self.window)}: write [START, END] in seconds, as [0, 60]"
            )
        return self

    @model_validator(mode="after")
    def _gaps_are_scaled_once(self) -> Replay:
        if self.load is not None and "time_scale" in self.model_fields_set:
            raise ValueError("load and time_scale: both scale the gaps, write one")
        return self
