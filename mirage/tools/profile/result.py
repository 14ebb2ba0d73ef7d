"""Measurements and fits as one JSON object, from which the page is made. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mirage.profiles import Model
from mirage.tools.profile.fitting import Fitted, predicted_s, step
from mirage.tools.profile.hardware import Figures, ProfileProvenance
from mirage.tools.profile.spread import spread
from mirage.tools.profile.understanding import Measured

SCHEMA_VERSION = 1
ACTS = ("create", "map", "clear", "unmap", "release")
"""Operations on pages, in order."""

Answers = Mapping[str, Any]


@dataclass(frozen=True)
class RunFacts:
    """Circumstances of the measurement."""

    title: str
    provenance: ProfileProvenance
    versions: dict[str, str]
    effort: str
    cores: int
    others: dict[str, float]
    """Mean number of other processes that wanted a core, by part."""
    seconds: dict[str, float]
    """Seconds that each part took."""
    doubts: list[str]


def result(
    run: RunFacts,
    measured: Measured,
    figures: Figures,
    engines: Mapping[str, Answers],
    transfers: Answers,
    models: Mapping[str, Model],
) -> dict[str, Any]:
    """The whole result. Times are in seconds, with median, quartiles and count."""
    return {
        "schema_version": SCHEMA_VERSION,
        **asdict(run),
        "hardware": {name: {"value": v, "source": source} for name, (v, source) in figures.items()},
        "fitted": asdict(measured.fitted),
        "serving": asdict(measured.serving),
        "apply_s": asdict(measured.apply),
        "message_s": asdict(measured.message),
        "link": {"one_way": asdict(measured.one_way), "mixed": asdict(measured.mixed)},
        "tenants": {
            name: _tenant(engine, models[name], measured.fitted) for name, engine in engines.items()
        },
        "copies": [_spreads(copy, "bytes", ("one_way_s", "mixed_s")) for copy in _in(transfers)],
        "page_bytes": transfers["page_bytes"],
        "pages": [
            _spreads(row, "pages", [f"{act}_s" for act in ACTS]) for row in transfers["pages"]
        ],
    }


def _in(transfers: Answers) -> Sequence[Answers]:
    copies: Sequence[Answers] = transfers["copies"]
    return copies


def _spreads(row: Answers, size: str, keys: Sequence[str]) -> dict[str, Any]:
    return {size: row[size], **{key: asdict(spread(row[key])) for key in keys}}


def _tenant(engine: Answers, model: Model, fitted: Fitted) -> dict[str, Any]:
    samples = [_sample(sample, engine["clock"], model, fitted) for sample in engine["samples"]]
    return {
        "model": model.title,
        "layers": model.layers,
        "layer_bytes": engine["layer_bytes"],
        "clock": engine["clock"],
        "load_s": asdict(spread(engine["load_s"])) if engine["load_s"] else None,
        "request_s": engine["request_s"],
        "samples": samples,
        "mean_error": statistics.mean(abs(s["fitted_s"] / s["seconds"] - 1) for s in samples),
    }


def _sample(sample: Answers, clock: str, model: Model, fitted: Fitted) -> dict[str, Any]:
    work = {key: sample[key] for key in ("sequences", "context", "prefill", "area")}
    return {
        **work,
        "seconds": sample[clock],
        "steps": asdict(spread(sample["times_s"])),
        "fitted_s": predicted_s(fitted, step(model, sample, clock)),
    }
