"""An answer in words: its sentences, and the findings that they are made from."""

from __future__ import annotations

from mirage.config import Config
from mirage.serve.fit.outlook import Speeds, outlook
from mirage.tools.explain.words import listed
from mirage.tools.report.enough import too_few
from mirage.tools.tune.answer import DEFAULT, POOLED, STATIC, TUNED, Recommendation, mean_lent
from mirage.tools.tune.contest import Contest, sentence
from mirage.tools.tune.goals import share_met
from mirage.tools.tune.question import Question
from mirage.tools.tune.space import changes
from mirage.tools.tune.words import Findings, sentences

WELL_MET = 0.98
"""Part of the requests that keep all limits if memory is not short."""


def said(question: Question, answer: Recommendation, contest: Contest | None = None) -> list[str]:
    """Three sentences, and further ones if real engines were measured in a `contest`."""
    live = [sentence(answer, contest)] if contest else []
    if contest and (few := too_few(contest.requests)) is not None:
        live.append(f"{few}.")
    return sentences(found(question, answer)) + live


def found(question: Question, answer: Recommendation) -> Findings:
    """Findings from which the sentences are made."""
    from mirage.tools.explain.words import sentences as explain

    idle, active = mean_lent(answer.judged, TUNED)
    goal, config = answer.goal, question.config
    link = question.machine.hardware.link_gb_s.value
    return Findings(
        goal=goal,
        searched=answer.searched,
        held_back={name: each.whole[goal.objective] for name, each in answer.judged.items()},
        changed=readable(config, answer.config),
        lent_idle=idle,
        lent_active=active,
        hides=[one.name for one in question.explained if one.hidden[0].layers_remapped],
        tenants=len(config.tenants),
        explained=explain(config, question.subjects.fits, question.explained, link),
        bottleneck=_bottleneck(question, answer),
        rest_s=_rests(config, answer.config),
    )


def _rests(before: Config, after: Config) -> tuple[float, float] | None:
    at_once = before.sharing.mode == "spatial"
    return (before.remap.rest_s, after.remap.rest_s) if at_once else None


def readable(before: Config, after: Config) -> list[str]:
    """Texts as ``max_percent of chat and code to 40``, for all values that differ."""
    names: dict[tuple[str, str], list[str]] = {}
    for key, (_, now) in changes(before, after).items():
        *way, last = key.split(".")
        value = f"{now:g}" if isinstance(now, float) else str(now)
        if way and way[0] == "tenants":
            names.setdefault((last, value), []).append(before.tenants[int(way[1])].name)
        else:
            names[key, value] = []
    every = len(before.tenants)
    return [
        f"{key}{_of(having, every)} to {value}" for (key, value), having in sorted(names.items())
    ]


def _of(names: list[str], every: int) -> str:
    if not names:
        return ""
    return " of all models" if len(names) == every > 1 else f" of {listed(names)}"


def _bottleneck(question: Question, answer: Recommendation) -> str:
    """Change that would help where remapping does not, as a clause."""
    slo = answer.goal.slo
    static, pooled = answer.judged[STATIC], answer.judged[POOLED]
    if share_met(static.outcomes, slo) >= WELL_MET:
        return "nothing is needed, memory is not short at this load even without sharing"
    if share_met(pooled.outcomes, slo) >= WELL_MET:
        return "policy pooled, which already keeps the limits at this load"
    if not sum(outcome.preemptions for outcome in answer.judged[DEFAULT].outcomes):
        return "more compute or fewer requests, for memory is not what is short"
    link = question.machine.hardware.link_gb_s.value * 1e9
    notes = outlook(question.config, question.subjects.fits, Speeds(link))
    if question.config.sharing.mode == "temporal" and notes:
        return notes[0].removeprefix("note: ")
    return "more device memory, fewer models on it, or a faster link"
