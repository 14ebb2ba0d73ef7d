"""Synthetic traces: a YAML file describes the requests, and a seed draws them.

Requests are drawn one at a time, so that only the open sessions are held in memory, however many
requests there are. `Synthetic` has the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

import yaml

from mirage.config import LARGEST_FILE, ODD_VALUES, ConfigError, Loader, validated
from mirage.problems import shown
from mirage.workload.formats.contract import Format
from mirage.workload.formats.head import Head
from mirage.workload.formats.invented import requests
from mirage.workload.formats.request import EndlessTrace, TraceError, TraceRequest
from mirage.workload.formats.source import Source
from mirage.workload.formats.synthetic_schema import Synthetic

FIRST_LINE = "kind: synthetic"


def _fits(head: Head) -> bool:
    return head.line == FIRST_LINE


def _read(source: Source) -> Iterator[TraceRequest]:
    asked = _asked(source)
    if asked.requests is None and asked.duration_s is None and not source.bounded:
        raise EndlessTrace(
            f"{source.path}: has no end: write requests or duration_s into it, or take a part "
            "(--window or --limit, or workload.requests)"
        )
    drawn = requests(asked, source.seed if asked.seed is None else asked.seed)
    if asked.duration_s is not None:
        end = asked.duration_s
        drawn = takewhile(lambda request: request.arrival_s < end, drawn)
    return islice(drawn, asked.requests)


def _asked(source: Source) -> Synthetic:
    try:
        raw = yaml.load(source.text(LARGEST_FILE), Loader)  # a safe one
    except (yaml.YAMLError, RecursionError, *ODD_VALUES) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{source.path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(raw, dict):
        raise TraceError(f"{source.path}: expected keys with values, found {shown(raw)}")
    try:
        return validated(Synthetic, raw, source.path)
    except ConfigError as error:
        raise TraceError(str(error)) from None


FORMAT = Format("synthetic", f"YAML that begins with {FIRST_LINE!r}", _fits, _read)
