"""Mooncake's traces: a JSON object a line, with times in milliseconds.

Fields ``timestamp``, ``input_length``, ``output_length`` and ``hash_ids``, one for each 512
tokens of the prompt. Its owners tell the format in
https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage.workload.formats import timed
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import Request
from mirage.workload.formats.source import Head, Source

MILLISECOND = 10**6
HASH_TOKENS = 512


def _fits(head: Head) -> bool:
    """Times with a fraction, and the chats of Qwen's traces, are of timed ones."""
    in_seconds = isinstance(head.fields.get(timed.TIME), float) or "chat_id" in head.fields
    return not in_seconds and timed.fits_blocks(head, HASH_TOKENS)


def _read(source: Source) -> Iterator[Request]:
    return timed.requests(source, MILLISECOND, HASH_TOKENS)


FORMAT = Format(
    "mooncake",
    "JSONL with timestamp in milliseconds, input_length, output_length, hash_ids of 512 tokens",
    _fits,
    _read,
)
