"""``report.html``: one self-contained file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from markupsafe import Markup

from mirage.samples import PLACES
from mirage.tools.replay import pictures
from mirage.tools.replay.run import PolicyRun
from mirage.tools.replay.table import remarks
from mirage.tools.replay.timeline import growth
from mirage.tools.report import comparison
from mirage.tools.report.document import Document, Section, facts, side_by_side, verdict

MEMORY = (
    pictures.kv_memory,
    pictures.layers_remapped,
    pictures.device_memory,
    pictures.pressure,
)
SOMETIMES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("concurrency", "Closed loop", "{} requests at once, arrivals not kept".format),
    ("warm_up_s", "Warm-up", "{:g} s, not measured".format),
    ("abandon_s", "Given up", "after {:g} s".format),
    ("slo", "SLO of a request", lambda slo: ", ".join(f"{n} ≤ {m:g}" for n, m in slo.items())),
    ("versions", "Versions", lambda found: ", ".join(map(" ".join, found.items()))),
    ("command", "The same again", Markup("<code>{}</code>").format),
)
"""Keys of a report that may be empty, their terms on the page, and functions that format their
values.
"""


def render(report: Mapping[str, Any], runs: Sequence[PolicyRun]) -> str:
    """The page for a report and the runs from which it was built."""
    policies = [column["policy"] for column in report["policies"]]
    base = "static" if "static" in policies else next(iter(policies), "")
    note = Markup(
        "<p>The best of a row is marked; the small figure is the ratio to {}. Latencies as "
        "<code>vllm bench serve</code> defines them.</p>"
    )
    table = comparison.rows(report["policies"], policies)
    tenants = _tenant_tables(report["policies"], policies)
    return Document(
        f"MIRAGE replay of {report['trace']}",
        f"Replay under {', '.join(policies) or 'no policy'}",
        list(_lead(report, policies)),
        [
            Section("Side by side", side_by_side(note.format(base), policies, table, tenants)),
            *_pictures(runs),
            Section("How it was measured", [facts(_measured(report))]),
        ],
    ).render()


def _lead(report: Mapping[str, Any], policies: Sequence[str]) -> Iterator[str]:
    yield "{requests} requests of {trace}, {config}, {machine}".format_map(report)
    identical, different = report["outputs_identical"], report["outputs_different"]
    if identical is None:
        yield verdict("Outputs not compared: that takes two policies that ran to their end", "open")
    elif identical:
        where = "in every repeat" if len(policies) == 1 else "under every policy"
        yield verdict(f"Every request's output is the same {where}")
    else:
        failed = sum(run["failed"] for run in report["runs"])
        said = f"{different} outputs differ between policies; {failed} requests failed"
        yield verdict(said, "bad")
    yield from remarks(dict(report))
    if report["interrupted"]:
        yield verdict("Interrupted: the last policy holds only what had finished", "bad")


def _measured(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Terms and values for the section on the measurement: inputs of the replay, the largest lag of
    the client in ms, and failed requests.
    """
    yield "Date", report["date"]
    yield "Machine", report["machine"]
    yield "Configuration", report["config"]
    yield "Trace", ", ".join(_trace(report))
    for why, count in report["skipped"].items():
        yield "Skipped", f"{count} {why}"
    yield "Scales", "gaps × {time_scale:g}, lengths × {length_scale:g}".format_map(report)
    for key, term, said in SOMETIMES:
        if report[key]:
            yield term, said(report[key])
    yield "Seed", str(report["seed"])
    yield "Clipped to the model's length", "{clipped} of {requests} requests".format_map(report)
    lags = (f"{run['policy']} {run['max_lag_ms']:.1f} ms" for run in report["runs"])
    yield "Client's lag, most", ", ".join(lags)
    for run in report["runs"]:
        for error, count in run["errors"].items():
            yield f"Failed, {run['policy']}", f"{count} × {error}"


def _trace(report: Mapping[str, Any]) -> Iterator[str]:
    yield report["trace"]
    if report["window"]:
        yield "{:g} to {:g} s".format(*report["window"])
    if report["limit"]:
        yield f"at most {report['limit']} requests"
    if report["rate"]:
        yield f"{report['rate']:g} requests a second"


def _pictures(runs: Sequence[PolicyRun]) -> list[Section]:
    """Pictures of the first run of each policy. Those of prompts and tiers are left out if nothing
    was found or copied.
    """
    runs = list({run.policy: run for run in reversed(runs)}.values())[::-1]
    kept = [run for run in runs if run.timeline and run.timeline.samples]
    found = _any(kept, *(f"tokens_from_{place}" for place in PLACES))
    wanted = [
        (pictures.latencies, runs),
        *((memory, kept) for memory in MEMORY),
        (pictures.prompts, kept if found else []),
        (pictures.below, kept if _any(kept, "kv_bytes_up", "kv_bytes_down") else []),
    ]
    return [drawn.section(shown) for drawn, shown in wanted if shown]


def _any(runs: Sequence[PolicyRun], *fields: str) -> bool:
    """True if one of these totals grew in some run."""
    timelines = [run.timeline for run in runs if run.timeline]
    return any(
        any(growth(timeline, attrgetter(field)).values())
        for timeline in timelines
        for field in fields
    )


def _tenant_tables(
    runs: Sequence[Mapping[str, Any]], policies: Sequence[str]
) -> dict[str, list[comparison.ComparisonRow]]:
    names = dict.fromkeys(name for run in runs for name in run["tenants"])
    return {
        name: comparison.rows([run["tenants"].get(name, {}) for run in runs], policies)
        for name in names
    }
