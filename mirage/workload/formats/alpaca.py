"""Alpaca's instructions: a JSON array, or one JSON object a line, without times and lengths.

Fields ``instruction``, ``input`` (may be empty) and ``output``, as described in
https://github.com/tatsu-lab/stanford_alpaca#data-release. A prompt is the instruction and, after a
blank line, the input. Lengths are estimated (`CHARACTERS_PER_TOKEN`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage.workload.formats.checks import estimated, text
from mirage.workload.formats.contract import Format
from mirage.workload.formats.head import Head
from mirage.workload.formats.request import TraceRequest
from mirage.workload.formats.source import Source

EMPTY = "entries with an empty instruction or output"


def _fits(head: Head) -> bool:
    return {"instruction", "output"} <= set(head.fields)


def _read(source: Source) -> Iterator[TraceRequest]:
    for where, entry in source.objects():
        instruction, answer = text(entry, "instruction", where), text(entry, "output", where)
        given = text(entry, "input", where) if "input" in entry else ""
        if not instruction.strip() or not answer.strip():
            source.skip(EMPTY)
            continue
        prompt = f"{instruction}\n\n{given}" if given.strip() else instruction
        context = estimated(len(prompt), "prompt", where)
        yield TraceRequest(0.0, context, estimated(len(answer), "output", where), prompt=prompt)


FORMAT = Format(
    "alpaca", "JSON with instruction, input and output", _fits, _read, has_arrivals=False
)
