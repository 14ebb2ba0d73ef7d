"""Custom data sets of ``vllm bench``: one JSON object a line, without times.

Fields ``prompt`` and optionally ``output_tokens``. Lengths of prompts are estimated
(`CHARACTERS_PER_TOKEN`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage.workload.formats.checks import estimated, text, tokens
from mirage.workload.formats.contract import Format
from mirage.workload.formats.head import Head
from mirage.workload.formats.request import TraceError, TraceRequest
from mirage.workload.formats.source import Source

OUTPUT_TOKENS = 256
"""Output tokens of a request without ``output_tokens``: the default of vLLM's
--custom-output-len.
"""


def _fits(head: Head) -> bool:
    return "prompt" in head.fields


def _read(source: Source) -> Iterator[TraceRequest]:
    for where, entry in source.objects():
        prompt = text(entry, "prompt", where)
        if not prompt:
            raise TraceError(f"{where}: prompt is empty: write one, or remove the line")
        written = entry.get("output_tokens")
        output = OUTPUT_TOKENS if written is None else tokens(written, "output_tokens", where)
        yield TraceRequest(0.0, estimated(len(prompt), "prompt", where), output, prompt=prompt)


FORMAT = Format(
    "custom", "JSONL with prompt and perhaps output_tokens", _fits, _read, has_arrivals=False
)
