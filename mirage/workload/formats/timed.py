"""Timed traces of ``vllm bench``: a JSON object a line, with times in seconds.

Fields ``timestamp``, ``input_length``, ``output_length`` and perhaps ``hash_ids``, one for each
16 tokens of the prompt: Alibaba's traces of Qwen are such, and these are vLLM's defaults.
A ``session_id`` is kept, and chats are followed (`chats`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirage.units import ceil_div
from mirage.workload.formats.chats import Chats
from mirage.workload.formats.checks import NANOSECONDS, Clock, field, moment, tokens
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import Request, TraceError
from mirage.workload.formats.source import Head, Source, shown

TIME, ASKED, ANSWERED, HASHES = "timestamp", "input_length", "output_length", "hash_ids"
HASH_TOKENS = 16
UNANSWERED = "requests without output (output_length 0)"


def fits_blocks(head: Head, hash_tokens: int) -> bool:
    """Whether the first request is timed, and its hashes, if any, stand for so many tokens."""
    asked, hashes = head.fields.get(ASKED), head.fields.get(HASHES) or []
    if not {TIME, ASKED, ANSWERED} <= set(head.fields) or not isinstance(asked, int):
        return False
    whole, last = divmod(asked, hash_tokens)
    return not hashes or (isinstance(hashes, list) and whole <= len(hashes) <= whole + (last > 0))


def requests(source: Source, unit: int, hash_tokens: int) -> Iterator[Request]:
    """The requests of a timed trace; `unit` is that of its times in nanoseconds."""
    clock, chats = Clock(), Chats()
    for where, entry in source.objects():
        written = field(entry, TIME, where)
        arrival_s = clock.since_first(moment(written, TIME, where, unit), str(written), where)
        asked = tokens(field(entry, ASKED, where), "input_length", where)
        answered = tokens(field(entry, ANSWERED, where), "output_length", where, least=0)
        hashes = _hashes(entry, asked, hash_tokens, where)
        session = chats.session(entry, where)
        if answered:
            yield Request(arrival_s, asked, answered, session, hashes, hash_tokens if hashes else 0)
        else:
            source.skip(UNANSWERED)


def _hashes(entry: dict[str, Any], asked: int, hash_tokens: int, where: str) -> tuple[int, ...]:
    hashes = entry.get(HASHES)
    if hashes is None:
        return ()
    if not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
        raise TraceError(f"{where}: hash_ids {shown(hashes)}, expected a list of whole numbers")
    if len(hashes) > ceil_div(asked, hash_tokens):
        raise TraceError(
            f"{where}: {len(hashes)} hash_ids for {asked} tokens, one for each {hash_tokens} "
            "of them: correct the row, or name another format"
        )
    return tuple(hashes)


def _fits(head: Head) -> bool:
    return fits_blocks(head, HASH_TOKENS)


def _read(source: Source) -> Iterator[Request]:
    return requests(source, NANOSECONDS, HASH_TOKENS)


FORMAT = Format(
    "timed",
    "JSONL with timestamp in seconds, input_length, output_length, hash_ids of 16 tokens",
    _fits,
    _read,
)
