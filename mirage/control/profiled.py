"""Step times by a hardware profile, used until an engine has measured its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from mirage.protocol import Report


class Profiled(NamedTuple):
    """Times of a tenant by its hardware profile, in seconds; 0 if there is no profile."""

    step_s: float = 0.0
    """Seconds of a decode step of one request that streams nothing: n T_c."""
    token_s: float = 0.0
    """Seconds by which one more prompt token lengthens a step."""

    def filled(self, report: Report, layers: int) -> Report:
        """Return a copy of `report` with these times in place of those that are still unknown."""
        return msgspec.structs.replace(
            report,
            layer_compute_s=report.layer_compute_s or self.step_s / max(1, layers),
            token_s=report.token_s or self.token_s,
        )


NOT_PROFILED = Profiled()
UNPROFILED: Mapping[str, Profiled] = MappingProxyType({})
"""Profiled times by tenant, where none are known."""
