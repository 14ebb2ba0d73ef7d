"""Memory of every engine over time, from their last reports. Pure: no clock.

Samples are kept as the JSON that is sent, so that sending them is copying. At most `capacity`
samples are kept, and at most `most_bytes` bytes. When the next sample would exceed a limit, every
second kept one is dropped, and from then on samples are kept at twice the interval. So the whole
run stays covered, more coarsely.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from mirage.protocol import Report
from mirage.samples import TenantSample
from mirage.units import MIB

FIELDS = TenantSample.__struct_fields__

MOST_BYTES = 64 * MIB
"""Most bytes of all samples: 20,000 of five tenants, 10,000 of ten."""
PAGE_SAMPLES = 1000
PAGE_BYTES = MIB
"""Most samples and most bytes of a page. A single sample may have more bytes."""


class Page(NamedTuple):
    """Some samples, oldest first, each as JSON.

    `next_since` is the value of `since` for the next page; None if this page has the newest sample.
    """

    samples: list[msgspec.Raw]
    next_since: float | None


def snapshot(report: Report) -> dict[str, int | float]:
    """Fields of one tenant in a sample; their meaning is that of `Report`."""
    return {field: getattr(report, field) for field in FIELDS}


class Timeline:
    """Samples of all tenants, taken every `samples.INTERVAL_S` by the caller."""

    def __init__(self, capacity: int = 20_000, most_bytes: int = MOST_BYTES) -> None:
        if capacity < 2:
            raise ValueError(f"capacity is {capacity}: a timeline needs room for 2 samples")
        self._capacity, self._most_bytes = capacity, most_bytes
        self._stride = 1
        self._skipped = 0
        self._times: list[float] = []
        self._samples: list[bytes] = []
        self._bytes = 0
        self.newest: dict[str, Any] = {"t": 0.0, "tenants": {}}
        """Last sample that was taken, even if it was not kept."""

    def record(self, t: float, reports: Mapping[str, Report]) -> None:
        """Add a sample at `t` seconds since the server was ready; `t` never goes back."""
        tenants = {name: snapshot(report) for name, report in reports.items()}
        self.newest = {"t": t, "tenants": tenants}
        self._skipped += 1
        if self._samples and self._skipped < self._stride:
            return
        self._skipped = 0
        sample = msgspec.json.encode(self.newest)
        if len(self._samples) == self._capacity or self._bytes + len(sample) > self._most_bytes:
            self._thin()
        self._times.append(t)
        self._samples.append(sample)
        self._bytes += len(sample)

    def _thin(self) -> None:
        del self._times[1::2], self._samples[1::2]
        self._bytes = sum(map(len, self._samples))
        self._stride *= 2

    def page(self, since: float | None = None, limit: int = PAGE_SAMPLES) -> Page:
        """Samples after `since` seconds, or from the first sample on if that is None: at most
        `limit`, and at most `PAGE_BYTES` bytes unless one sample is larger."""
        begin = 0 if since is None else bisect_right(self._times, since)
        end = nbytes = 0
        for end, sample in enumerate(self._samples[begin : begin + limit], begin + 1):
            nbytes += len(sample)
            if nbytes > PAGE_BYTES:
                end = max(begin + 1, end - 1)
                break
        some = [msgspec.Raw(sample) for sample in self._samples[begin:end]]
        return Page(some, self._times[end - 1] if begin < end < len(self._times) else None)
