"""Prediction for a dry run of an apply, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from mirage.printed import json_object
from mirage.serve.admin.forms import FORM_VERSION
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


def foretold_of_devices(
    told: ApplyTold, past: Callable[[str], Sequence[PastRow]]
) -> dict[str, Foretold]:
    """Predict latencies on each of several devices whose configuration changes immediately.

    `past` returns the requests of a device in the last hour. A model that moves after the change is
    simulated on no device.
    """
    return {
        name: foretold(msgspec.structs.replace(told, what_if=one.what_if), partial(past, name))
        for name, one in told.devices.items()
        if one.what_if is not None
    }


def text_of(found: Foretold, devices: Mapping[str, Foretold]) -> str:
    """Predictions of one device, or of each of several, for the terminal; empty if nothing
    differs.
    """
    each = [f"{name}: {one.text}" for name, one in devices.items()]
    return "\n".join([*([found.text] if found.text else []), *each])


def as_object(told: ApplyTold, found: Foretold, devices: Mapping[str, Foretold]) -> str:
    """Answer of the dry run and predictions as one JSON object."""
    plain: dict[str, Any] = msgspec.to_builtins(told)
    for name, one in plain["devices"].items():
        del one["what_if"]
        one |= _as_keys(devices.get(name, Foretold()))
    del plain["what_if"]
    return json_object(FORM_VERSION, plain | _as_keys(found))


def _as_keys(found: Foretold) -> dict[str, Any]:
    """Keys `prediction` and `no_prediction`."""
    prediction = None
    if found.prediction is not None:
        error = errors(found.prediction)
        prediction = msgspec.to_builtins(found.prediction) | {"now_by_measured": error}
    return {"prediction": prediction, "no_prediction": found.why_not or None}
