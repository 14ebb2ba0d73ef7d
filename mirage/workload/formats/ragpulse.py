"""RAGPulse: requests to a service that answers with retrieved passages, one JSON object a line.

Fields ``timestamp`` (a text, in seconds), ``input_length``, ``output_length``, ``session_id`` and
``hash_ids``, an object with a list for each part of the prompt. The parts stand in the prompt in
the order of `PARTS`. The lengths of parts are in other files. Parts of the system prompt, which
many requests share, have 512 tokens each except the last, so this length is assumed for all parts.
Schema: https://github.com/flashserve/RAGPulse#components
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirage.units import ceil_div
from mirage.workload.formats.checks import Clock, field, seconds_written, session, text, tokens
from mirage.workload.formats.contract import Format
from mirage.workload.formats.evidence import ANSWERED, ASKED, FIELDS, HASHES, TIME
from mirage.workload.formats.head import Head
from mirage.workload.formats.request import TraceError, TraceRequest
from mirage.workload.formats.source import Source
from mirage.workload.formats.telling import shown
from mirage.workload.formats.timed import UNANSWERED

PARTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
PART_TOKENS = 512


def _fits(head: Head) -> bool:
    hashes = head.fields.get(HASHES)
    return set(head.fields) >= FIELDS and isinstance(hashes, dict) and PARTS[0] in hashes


def _read(source: Source) -> Iterator[TraceRequest]:
    clock = Clock()
    for where, entry in source.objects():
        written = text(entry, TIME, where)
        arrival_s = clock.since_first(seconds_written(written, where), written, where)
        asked = tokens(field(entry, ASKED, where), ASKED, where)
        answered = tokens(field(entry, ANSWERED, where), ANSWERED, where, least=0)
        parts = _parts(field(entry, HASHES, where), where)[: ceil_div(asked, PART_TOKENS)]
        name = session(entry, "session_id", where)
        if answered:
            yield TraceRequest(arrival_s, asked, answered, name, parts, PART_TOKENS if parts else 0)
        else:
            source.skip(UNANSWERED)


def _parts(hashes: Any, where: str) -> tuple[int, ...]:
    lists = [hashes.get(part) for part in PARTS] if isinstance(hashes, dict) else [None]
    whole = all(isinstance(each, list) and all(type(one) is int for one in each) for each in lists)
    if not whole:
        raise TraceError(
            f"{where}: {HASHES} {shown(hashes)}, expected an object with lists of whole numbers: "
            f"{', '.join(PARTS)}"
        )
    return tuple(one for each in lists if each is not None for one in each)


FORMAT = Format(
    "ragpulse",
    "JSONL with timestamp as a text in seconds, input_length, output_length, hash_ids by part",
    _fits,
    _read,
)
