"""Table of several devices: the models on each, and its figures under each policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ABOUT = (
    "Requests that each answered and TTFT P99 in ms, means over the seeds. What a device had "
    "answered before it was lost counts."
)

Result = Mapping[str, Any]


def columns(result: Result) -> list[str]:
    """Titles of the columns of a table with a row for each device."""
    return ["device", "hardware", "models", *result["policies"]]


def rows(result: Result) -> Iterator[list[str]]:
    """A row for each device, in the order of `result`; none for an experiment on one device."""
    for name, device in result.get("devices", {}).items():
        parts = (result["results"][policy]["devices"][name] for policy in result["policies"])
        yield [name, device["hardware"], ", ".join(device["shares"]), *map(_said, parts)]


def _said(figures: Mapping[str, Any]) -> str:
    completed, ttft = figures["completed"], figures["p99_ttft_ms"]
    late = f", {ttft['mean']:,.0f} ms" if ttft else ""
    return f"{completed['mean']:,.0f}{late}"
