"""From runs to what is known of each family: the data behind `mirage check`, and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage.serve.fit.proven import beside
from tests.zoo import GROUPS
from tests.zoo.checking import disagreements
from tests.zoo.family import Family
from tests.zoo.judging import differences, hidden

Facts = Mapping[str, Any]

PAGE = """# Models

What has been tried of each family, with tiny random weights, on vLLM {vllm} for CPUs. Written by

    make models

from real runs. *Identical*: tokens and top-5 log-probabilities, or vectors and scores, are equal
to plain vLLM's bit for bit in three rounds of prompts, the third with those of the first, while
at every third step a random allotment gives layers away or takes them back (0 to all but one or
two of them, by one slot and two) and the KV cache grows or shrinks, with NaN in all memory that was
given away; prefix caching is on where vLLM has it for the model. *Two in flight*: the same with
asynchronous scheduling, as on a GPU. *Control*: over a slow link and without the waits for
streamed layers the outputs differ, so the comparison would see a fault. *Over HTTP*: behind
`mirage serve` with three others on a device that is nearly full, the same tokens before and after
bursts took memory. *Check*: what `mirage check` says before anything starts, compared with what
the engine then had. Multimodal models get a picture with each prompt.

oneDNN is off in all runs, plain vLLM's too, so neither side has an output head that oneDNN packed.
Requests for a llama with adapters are for none, the first and the second in turn; there plain vLLM
runs with MIRAGE's correction, since on a CPU it gives those without an adapter the last one's text.
Where layers have KV blocks of several sizes (gemma4), plain vLLM runs with the layout of our
engines, since with its own it computes other batches, and kernels for AMX round by a batch's size.

On a processor with AMX all proven families had the same outputs as plain vLLM, and two that run
only there ([which](results.md#families-on-amx), 2026-11-28 and 29).

{summary}
"""


@dataclass(frozen=True)
class Tried:
    """One family and its runs by mode; None where a mode was not run."""

    family: Family
    runs: Mapping[str, dict[str, Any] | None]

    @property
    def plain(self) -> dict[str, Any] | None:
        return self.runs.get("plain")

    def reasons(self, suffix: str = "") -> list[str] | None:
        """Reasons why the family is not proven with this way of scheduling; None if it was not
        run.
        """
        plain, ours = self.runs.get("plain" + suffix), self.runs.get("mirage" + suffix)
        if plain is not None and "failed" in plain:
            if self.only_so_fails(suffix):
                return None
            return [f"plain vLLM fails: {plain['failed']}"]
        if plain is None or ours is None:
            return None
        return differences(plain, ours)

    def only_so_fails(self, suffix: str) -> bool:
        """True if plain vLLM runs the family, but not with this way of scheduling."""
        return (
            bool(suffix)
            and "failed" not in (self.plain or {"failed": ""})
            and "failed" in (self.runs.get("plain" + suffix) or {})
        )

    def control(self) -> str | None:
        """Reason why the run without waits shows nothing; None if its outputs differ, "" if it was
        not run.
        """
        plain, broken = self.plain, self.runs.get("nowait")
        if plain is None or broken is None or "failed" in plain or broken.get("layers") == 0:
            return ""
        return hidden(plain, broken)

    def check(self) -> str:
        """Comparison of what `mirage check` said with what the engine had."""
        said, ours = self.runs.get("check"), self.runs.get("mirage")
        if said is None:
            return "not asked"
        if "refused" in said:
            return "refuses it"
        if ours is None or "shape" not in ours:
            return "accepts it"
        wrong = disagreements(said, ours["shape"])
        return f"disagrees: {'; '.join(wrong)}" if wrong else "agrees"

    def over_http(self) -> str:
        """Result of the comparison of answers of `mirage serve` before and after a burst that took
        the layers' memory.
        """
        run = self.runs.get("http")
        if run is None:
            return "not tried"
        if "failed" in run:
            return f"**failed**: {run['failed']}"
        if not run["same"]:
            return "**differs**"
        return f"same, {run['given']} layers away meanwhile"

    @property
    def architecture(self) -> str:
        """Name of the architecture, as in config.json."""
        facts = self.plain or {}
        return str(facts.get("architecture") or self.family.architecture or self.family.model_type)

    @property
    def beside(self) -> tuple[str, ...]:
        """Arguments with which the family is computed by other code than without."""
        named = self.family.beside(Path()) if self.family.beside else {}
        return beside({**self.family.arguments, **named})

    @property
    def quantisation(self) -> str:
        """vLLM's name of the format, empty for plain weights."""
        return str((self.plain or {}).get("quantisation") or self.family.quantisation)


def proven(tried: Sequence[Tried], vllm: str, modules: Mapping[str, str]) -> dict[str, Any]:
    """Content of the data file of `mirage.serve.fit.proven`. `modules` are vLLM's modules by
    architecture.
    """
    rows = [row for each in tried if (row := _row(each)) is not None]
    days = [run["date"] for each in tried for run in each.runs.values() if run]
    return {
        "vllm": vllm,
        "date": max(days, default=""),
        "rows": rows,
        "same_parts": _same_parts(rows, modules),
    }


def _same_parts(rows: Sequence[Facts], modules: Mapping[str, str]) -> dict[str, str]:
    """Untried architectures, each with a proven one that the same module of vLLM builds."""
    tried = {row["architecture"] for row in rows}
    good = {row["architecture"] for row in rows if row["proven"] and not row["quantisation"]}
    known = {modules[name]: name for name in sorted(good, reverse=True) if name in modules}
    return {
        name: known[module]
        for name, module in sorted(modules.items())
        if name not in tried and module in known
    }


def _row(tried: Tried) -> dict[str, Any] | None:
    results = [r for r in (tried.reasons(), tried.reasons("-async")) if r is not None]
    if not results:
        return None
    runs = [r for mode in ("mirage", "mirage-async") if (r := tried.runs.get(mode))]
    ran = [run for run in runs if "failed" not in run]
    reasons = list(dict.fromkeys(reason for result in results for reason in result))
    if tried.control():
        reasons.append(str(tried.control()))
    return {
        "family": tried.family.name,
        "architecture": tried.architecture,
        "quantisation": tried.quantisation,
        "proven": not reasons,
        "prompts": sum(run["prompts"] for run in ran),
        "changes": sum(run["changes"] for run in ran),
        "reason": "; ".join(_line(reason) for reason in reasons),
        "beside": tried.beside,
    }


def page(tried: Sequence[Tried], vllm: str) -> str:
    """Text of the page, in Markdown."""
    by_name = {each.family.name: each for each in tried}
    known = [row for each in tried if (row := _row(each)) is not None]
    good = sum(row["proven"] for row in known)
    unknown = len(tried) - len(known)
    summary = f"{good} of {len(known)} families tried are proven; {unknown} were not run."
    parts = [PAGE.format(vllm=vllm, summary=summary)]
    for group, families in GROUPS.items():
        parts.append(
            f"## {group[0].upper()}{group[1:]}\n\n{_table([by_name[f.name] for f in families])}"
        )
    return "\n".join(parts)


HEADINGS = (
    "family", "architecture", "plain vLLM here", "check", "identical", "two in flight", "control",
    "over HTTP", "KV groups", "reason",
)  # fmt: skip


def _table(tried: Sequence[Tried]) -> str:
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_cells, tried)]
    return "".join(f"| {' | '.join(_line(cell) for cell in row)} |\n" for row in rows)


def _cells(tried: Tried) -> tuple[str, ...]:
    row = _row(tried)
    plain = tried.plain
    works = "not run" if plain is None else "fails" if "failed" in plain else "works"
    control = tried.control()
    return (
        tried.family.name,
        tried.architecture,
        works,
        tried.check(),
        _identical(tried, ""),
        _identical(tried, "-async"),
        "" if control == "" else "differs" if control is None else "**hides it**",
        tried.over_http() if works == "works" else "",
        _groups(plain or {}),
        row["reason"] if row else "not run",
    )


def _identical(tried: Tried, suffix: str) -> str:
    if tried.only_so_fails(suffix):
        return "vLLM itself fails"
    reasons, run = tried.reasons(suffix), tried.runs.get(f"mirage{suffix}")
    if reasons is None or run is None:
        return ""
    if reasons:
        return "**no**"
    stay = ", the layers stay" if not run["layers"] else ""
    return f"{run['prompts']} prompts, {run['changes']} changes, {run['date']}{stay}"


def _groups(plain: Mapping[str, Any]) -> str:
    """Text such as ``3 x sliding window (2 layers, 32 tokens)`` for each kind of group."""
    found: dict[str, int] = {}
    for group in plain.get("groups", []):
        kind = group["kind"].removesuffix("Spec").removesuffix("Attention")
        text = f"{kind} ({group['layers']} layers, {group['block_tokens']} tokens)"
        found[text] = found.get(text, 0) + 1
    return ", ".join(f"{count} x {text}" for text, count in found.items())


def _line(text: str) -> str:
    """Text of one cell, without line ends and bars."""
    return " ".join(str(text).split()).replace("|", "/")
