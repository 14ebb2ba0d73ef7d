"""Mooncake's traces: one JSON object a line, with times in milliseconds.

Fields ``timestamp``, ``input_length``, ``output_length`` and ``hash_ids``, one for each 512 tokens
of the prompt. Its owners describe the format in
https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage.workload.formats import evidence, timed
from mirage.workload.formats.chats import CHAT
from mirage.workload.formats.contract import Format
from mirage.workload.formats.head import Head
from mirage.workload.formats.request import TraceRequest
from mirage.workload.formats.source import Source

MILLISECOND = 10**6
HASH_TOKENS = 512


def _fits(head: Head) -> bool:
    """True for timed rows with hashes of 512 tokens whose times may be milliseconds. Rows with a
    chat are Qwen's, which are `timed`.
    """
    found = evidence.rows(head)
    if found is None or CHAT in head.fields:
        return False
    return HASH_TOKENS in found.sizes and not found.in_seconds


def _doubt(head: Head) -> str | None:
    found = evidence.rows(head)
    if found is None or not evidence.may_be_seconds(found):
        return None
    other = "guidellm" if found.hashed else "timed"
    return (
        f"its times are taken for milliseconds, {1000 / found.gap:.3g} requests a second; if they "
        f"are seconds, {evidence.say(other)}"
    )


def _read(source: Source) -> Iterator[TraceRequest]:
    return timed.requests(source, MILLISECOND, HASH_TOKENS, whole=not source.named)


FORMAT = Format(
    "mooncake",
    "JSONL with timestamp in milliseconds, input_length, output_length, hash_ids of 512 tokens",
    _fits,
    _read,
    doubt=_doubt,
)
