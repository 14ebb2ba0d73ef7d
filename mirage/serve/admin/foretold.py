"""Prediction for a dry run of an apply, or the reason why there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from mirage.serve.apply.forms import ApplyTold
from mirage.serve.whatif.forms import PastRow
from mirage.serve.whatif.prediction import NoPrediction, Prediction, errors, predict
from mirage.serve.whatif.table import shown


class Foretold(NamedTuple):
    """Prediction, or a line about why there is none; neither if nothing differs."""

    prediction: Prediction | None = None
    why_not: str = ""

    @property
    def text(self) -> str:
        """Text for the terminal; empty if nothing differs."""
        return self.why_not if self.prediction is None else shown(self.prediction)


def foretold(told: ApplyTold, past: Callable[[], Sequence[PastRow]]) -> Foretold:
    """Predict latencies after an apply; `past` returns the requests of the last hour."""
    if told.what_if is None:
        return Foretold()
    try:
        return Foretold(predict(told.what_if, past()))
    except NoPrediction as error:
        return Foretold(why_not=f"{error}: no prediction")


def as_object(told: ApplyTold, found: Foretold) -> str:
    """Answer of the dry run and prediction as one JSON object."""
    plain: dict[str, Any] = msgspec.to_builtins(told)
    del plain["what_if"]
    plain["prediction"] = None
    if found.prediction is not None:
        error = errors(found.prediction)
        plain["prediction"] = msgspec.to_builtins(found.prediction) | {"now_by_measured": error}
    plain["no_prediction"] = found.why_not or None
    return json.dumps(plain, indent=2)
