"""Destination of the rows: a JSON file for each GPU and day, and a table in docs/results.md."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import Row

HEADING = "## On a GPU"
NOT_YET = "Nothing here has run on a GPU yet"


class Page:
    """Rows of one run, written to the files after each row, beside the rows of other commands."""

    def __init__(self, path: Path, docs: Path | None, about: dict[str, object]) -> None:
        self.path, self._docs, self._about = path, docs, about
        self._rows: list[Row] = []

    @property
    def missed(self) -> bool:
        """True if a row missed its aim."""
        return any(row.holds is False for row in self._rows)

    def add(self, row: Row) -> None:
        self._rows.append(row)
        others = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        rows = [r.as_dict() for r in self._rows]
        written = others | {str(self._about["what"]): self._about | {"rows": rows}}
        self.path.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        if self._docs is not None:
            text = self._docs.read_text(encoding="utf-8")
            self._docs.write_text(with_table(text, self._table()), encoding="utf-8")

    def _table(self) -> str:
        about = self._about
        lines = [
            f"`make gpu-{about['what']}`, {about['gpu']}, CUDA {about['cuda']}, {about['date']}.",
            "",
            "| | measured | aim | |",
            "|---|---|---|---|",
        ]
        for row in self._rows:
            holds = {True: "yes", False: "no", None: ""}[row.holds]
            lines.append(f"| {row.what or row.name} | {row.value} | {row.aim} | {holds} |")
        return "\n".join(lines)


def begin(what: str, device: dict[str, Any], results: Path, docs: Path | None) -> Page:
    """Begin a page of results of the command ``make gpu-WHAT``. `device` has the facts of the
    device, as the child process `stepping` tells them. Without `docs` no table is written.
    """
    now = datetime.now(UTC)
    slug = re.sub(r"[^a-z0-9]+", "-", str(device["gpu"]).lower()).strip("-")
    results.mkdir(parents=True, exist_ok=True)
    about: dict[str, object] = {
        "what": what,
        **device,
        "date": f"{now:%Y-%m-%d}",
        "time": f"{now:%H:%M:%S} UTC",
    }
    return Page(results / f"{now:%Y-%m-%d}-{slug}.json", docs, about)


def with_table(text: str, table: str) -> str:
    """`text` with the table of that command and GPU in its section, in place of an older table."""
    first = table.split("\n", 1)[0]
    key = ",".join(first.split(",")[:2])
    head, heading, rest = text.partition(HEADING)
    if not heading:
        return f"{text.rstrip()}\n\n{HEADING}\n\n{table}\n"
    section, following = _until_next_heading(rest)
    blocks = [b for b in re.split(r"\n\n(?=`make gpu-)", section.strip()) if b]
    kept = [b for b in blocks if not b.startswith((key, NOT_YET))]
    return f"{head}{HEADING}\n\n" + "\n\n".join([*kept, table]) + "\n" + following


def _until_next_heading(text: str) -> tuple[str, str]:
    place = text.find("\n## ")
    return (text, "") if place < 0 else (text[:place], "\n" + text[place:].lstrip("\n"))
