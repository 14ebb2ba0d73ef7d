"""Mooncake's fields in GuideLLM's form: one JSON object a line, with times in seconds.

Fields ``timestamp``, ``input_length``, ``output_length`` and ``hash_ids``, one for each 512 tokens
of the prompt. GuideLLM describes the format in
https://github.com/vllm-project/guidellm/blob/main/docs/guides/trace_replay.md
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage.workload.formats import evidence, timed
from mirage.workload.formats.chats import CHAT
from mirage.workload.formats.checks import NANOSECONDS
from mirage.workload.formats.contract import Format
from mirage.workload.formats.head import Head
from mirage.workload.formats.request import TraceRequest
from mirage.workload.formats.source import Source

HASH_TOKENS = 512


def _fits(head: Head) -> bool:
    """True for rows with hashes of 512 tokens and times with a decimal point, which Mooncake's have
    not; rows with a chat need no such times.
    """
    found = evidence.rows(head)
    if found is None or not found.hashed or HASH_TOKENS not in found.sizes:
        return False
    if CHAT in head.fields:
        return timed.HASH_TOKENS not in found.sizes
    return found.pointed and found.in_seconds is not False


def _doubt(head: Head) -> str | None:
    found = evidence.rows(head)
    if found is None or CHAT in head.fields or not evidence.may_be_milliseconds(found):
        return None
    return (
        f"its times are taken for seconds, one request in {found.gap:.3g} s; if they are "
        f"milliseconds, {evidence.say('mooncake')}"
    )


def _read(source: Source) -> Iterator[TraceRequest]:
    return timed.requests(source, NANOSECONDS, HASH_TOKENS)


FORMAT = Format(
    "guidellm",
    "JSONL with timestamp in seconds, input_length, output_length, hash_ids of 512 tokens",
    _fits,
    _read,
    doubt=_doubt,
)
