"""Memory of a tenant by its role, computed from its engine's last report. Pure."""

from __future__ import annotations

from mirage.geometry import block_bytes
from mirage.protocol import ModelShape, Report
from mirage.serve.overview.forms import RoleBytes


def by_role(held_bytes: int, report: Report | None, shape: ModelShape | None) -> RoleBytes:
    """Split the memory that a tenant holds by role; without a report all of it is weights."""
    if report is None or shape is None:
        return RoleBytes(weights=held_bytes)
    kv = min(held_bytes, report.kv_extents * shape.extent_bytes)
    used = min(kv, int(report.kv_used_blocks * block_bytes(shape)))
    cached = min(kv - used, int(report.kv_cached_blocks * block_bytes(shape)))
    return RoleBytes(held_bytes - kv, used, cached, kv - used - cached)
