"""Timed traces of ``vllm bench``: one JSON object a line, with times in seconds.

Fields ``timestamp``, ``input_length``, ``output_length`` and optionally ``hash_ids``, one for each
16 tokens of the prompt. Alibaba's traces of Qwen have this form, and these are vLLM's defaults. A
``session_id`` is kept, and chats are followed (`chats`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirage.units import ceil_div
from mirage.workload.formats import evidence
from mirage.workload.formats.chats import CHAT, Chats
from mirage.workload.formats.checks import NANOSECONDS, Clock, field, moment, tokens
from mirage.workload.formats.contract import Format
from mirage.workload.formats.evidence import ANSWERED, ASKED, HASHES, TIME
from mirage.workload.formats.head import Head
from mirage.workload.formats.request import TraceError, TraceRequest
from mirage.workload.formats.source import Source
from mirage.workload.formats.telling import shown

HASH_TOKENS = 16
DELAY = "delay"
UNANSWERED = "requests without output (output_length 0)"


def requests(
    source: Source, unit: int, hash_tokens: int, whole: bool = False
) -> Iterator[TraceRequest]:
    """Requests of a timed trace whose times count in units of `unit` nanoseconds. Raises
    `TraceError` for a damaged row.

    With `whole`, a time that is not a whole number is refused: it shows that the unit, which was
    guessed from the first rows, is wrong.
    """
    clock, chats = Clock(), Chats()
    for where, entry in source.objects():
        written = _time(entry, where, whole)
        arrival_s = clock.since_first(moment(written, TIME, where, unit), str(written), where)
        asked = tokens(field(entry, ASKED, where), ASKED, where)
        answered = tokens(field(entry, ANSWERED, where), ANSWERED, where, least=0)
        hashes = _hashes(entry, asked, hash_tokens, where)
        if hashes and 2 * len(hashes) * hash_tokens < asked:
            source.say(
                f"hash_ids of {hash_tokens} tokens each cover less than half of some prompts, and "
                "what these share beyond is lost: does another --trace-format fit better?"
            )
        session = chats.session(entry, where)
        if answered:
            size = hash_tokens if hashes else 0
            yield TraceRequest(arrival_s, asked, answered, session, hashes, size)
        else:
            source.skip(UNANSWERED)


def _time(entry: dict[str, Any], where: str, whole: bool) -> Any:
    if DELAY in entry and TIME not in entry:
        raise TraceError(
            f"{where}: has a delay after an answer that has no time here, and no {TIME!r}: add it"
        )
    written = field(entry, TIME, where)
    if whole and isinstance(written, float) and not written.is_integer():
        raise TraceError(
            f"{where}: {TIME} {written}, after whole numbers alone: seconds or milliseconds? For "
            f"seconds, {evidence.say('guidellm')}, else mooncake"
        )
    return written


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
    found = evidence.rows(head)
    if found is None or HASH_TOKENS not in found.sizes:
        return False
    return CHAT in head.fields or found.hashed or found.in_seconds is not False


def _doubt(head: Head) -> str | None:
    found = evidence.rows(head)
    if found is None or CHAT in head.fields:
        return None
    rate = f"its times are taken for seconds, one request in {found.gap:.3g} s"
    if found.hashed:
        slow = found.gap > evidence.SLOWEST_S
        return f"{rate}; if they are milliseconds, give a time scale of 0.001" if slow else None
    if not evidence.may_be_milliseconds(found):
        return None
    return f"{rate}; if they are milliseconds, {evidence.say('mooncake')}"


def _read(source: Source) -> Iterator[TraceRequest]:
    return requests(source, NANOSECONDS, HASH_TOKENS)


FORMAT = Format(
    "timed",
    "JSONL with timestamp in seconds, input_length, output_length, hash_ids of 16 tokens",
    _fits,
    _read,
    nearly=evidence.why_none,
    doubt=_doubt,
)
