"""``tune.json``: all that is needed to repeat an answer, and all its results."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from typing import Any

from mirage.tools.report.origin import versions
from mirage.tools.tune.answer import JUDGE_SEEDS, SEARCH_SEEDS, Recommendation, TuneWish, mean_lent
from mirage.tools.tune.contest import Contest, middle
from mirage.tools.tune.goals import figures
from mirage.tools.tune.question import Question
from mirage.tools.tune.recommending import OfferedLoad
from mirage.tools.tune.space import changes
from mirage.tools.tune.windows import Window

SCHEMA_VERSION = 1
LIBRARIES = ("optuna", "numpy")


def build(
    question: Question,
    wish: TuneWish,
    answer: Recommendation,
    said: list[str],
    command: list[str],
    contest: Contest | None = None,
) -> dict[str, Any]:
    """The report, ready for JSON, with the measurements on real engines if there was a `contest`.
    The same for the same question, except for `command` and versions."""
    on, replay, options = question.machine, question.config.replay, question.options
    config = contest.config if contest else answer.config
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "versions": versions(LIBRARIES),
        "config": str(question.path),
        "hardware": {"name": on.name, "why": on.why, **on.hardware.model_dump()},
        "trace": {
            "file": question.trace_name,
            "requests": question.requests,
            "time_scale": replay.time_scale * answer.slower,
            "length_scale": replay.length_scale,
            "too_many_per_s": {n: question.rate(s) for n, s in answer.pressing.items()},
            "load": _load(answer.load) if answer.load else None,
            "searched": [_window(window) for window in question.cut.searched],
            "held_back": [_window(window) for window in question.cut.held_back],
        },
        "seeds": {
            "search": options.seed,
            "finalists": list(range(options.seed, options.seed + SEARCH_SEEDS)),
            "judging": list(range(options.seed, options.seed + JUDGE_SEEDS)),
        },
        "objective": wish.objective,
        "maximised": answer.goal.maximised,
        "slo": asdict(answer.goal.slo),
        "slo_is_derived": answer.slo_is_derived,
        "sentences": said,
        "choice": dict(answer.choice),
        "changes": {k: list(v) for k, v in changes(question.config, config).items()},
        "knobs": {knob.name: list(knob.values) for knob in question.space.knobs},
        "importances": answer.importances,
        "searched": answer.searched,
        "held_back": {
            name: {
                **each.whole,
                "preemptions": sum(outcome.preemptions for outcome in each.outcomes),
                "bytes_streamed": sum(outcome.streamed for outcome in each.outcomes),
                "lent_bytes_idle": mean_lent(answer.judged, name)[0],
                "lent_bytes_active": mean_lent(answer.judged, name)[1],
                "seeds": list(each.seeds),
            }
            for name, each in answer.judged.items()
        },
        "live": _live(answer, contest) if contest else None,
        "trials": [asdict(trial) for trial in answer.trials],
        "explained": [asdict(one) for one in question.explained],
    }


def _load(load: OfferedLoad) -> dict[str, Any]:
    return {
        "computed_per_s": load.computed_per_s,
        "too_many": load.too_many,
        "recommended": load.recommended,
        "why": load.said(),
    }


def _live(answer: Recommendation, contest: Contest) -> dict[str, Any]:
    goal = answer.goal
    return {
        "requests": contest.requests,
        "winner": contest.winner,
        "measured": {
            name: {
                **middle(goal, results),
                "repeats": [figures([result], goal.slo) for result in results],
                "completed": [len(result.rows) for result in results],
            }
            for name, results in contest.results.items()
        },
    }


def as_json(report: dict[str, Any]) -> str:
    """The report as JSON text; infinite numbers become null."""
    return json.dumps(_finite(report), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _window(window: Window) -> dict[str, float]:
    return {
        "begin_s": window.begin_s,
        "end_s": window.end_s,
        "requests": len(window.requests),
    }
