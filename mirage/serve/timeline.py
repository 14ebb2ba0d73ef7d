"""What every engine held and used over time, from their last reports. Pure: no clock.

Memory is bounded: once `capacity` samples are kept, every second one is dropped and only
every second one is taken from then on, so the whole run stays covered, more coarsely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage.protocol import Report
from mirage.samples import TenantSample

FIELDS = TenantSample.__struct_fields__


def snapshot(report: Report) -> dict[str, int | float]:
    """The fields of one tenant in one sample; their meaning is `Report`'s."""
    return {field: getattr(report, field) for field in FIELDS}


class Timeline:
    """Samples of all tenants, taken every `samples.INTERVAL_S` by the caller."""

    def __init__(self, capacity: int = 20_000) -> None:
        if capacity < 2:
            raise ValueError(f"capacity is {capacity}: a timeline needs room for 2 samples")
        self._capacity = capacity
        self._stride = 1
        self._skipped = 0
        self._samples: list[dict[str, Any]] = []
        self.newest: dict[str, Any] = {"t": 0.0, "tenants": {}}
        """The last sample that was taken, kept or not."""

    def record(self, t: float, reports: Mapping[str, Report]) -> None:
        """Add a sample at `t` seconds since the server was ready; `t` never goes back."""
        tenants = {name: snapshot(report) for name, report in reports.items()}
        self.newest = {"t": t, "tenants": tenants}
        self._skipped += 1
        if self._samples and self._skipped < self._stride:
            return
        self._skipped = 0
        if len(self._samples) == self._capacity:
            del self._samples[1::2]
            self._stride *= 2
        self._samples.append(self.newest)

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Oldest first: ``{"t": seconds, "tenants": {name: snapshot}}``."""
        return list(self._samples)
