"""Step times by a hardware profile, used until an engine has measured its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from mirage.protocol import Report


class Profiled(NamedTuple):
    """Times of a tenant in its hardware profile, in seconds; 0 if it has none."""

    step_s: float = 0.0
    """A decode step of one request that streams nothing: n T_c."""
    token_s: float = 0.0
    """By which one more prompt token lengthens a step."""

    def filled(self, report: Report, layers: int) -> Report:
        """A copy of `report`, with these times in place of those that are still unknown."""
        return msgspec.structs.replace(
            report,
            layer_compute_s=report.layer_compute_s or self.step_s / max(1, layers),
            token_s=report.token_s or self.token_s,
        )


NOT_PROFILED = Profiled()
UNPROFILED: Mapping[str, Profiled] = MappingProxyType({})
"""By tenant: nothing is known of anybody."""
