"""The fit of all tenants as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from mirage.config import Config
from mirage.serve.fit import Fit, mib

HEADINGS = ("tenant", "share", "grant", "parameters", "layers", "KV blocks", "left", "KV up to")


def fit_table(config: Config, fits: Mapping[str, Fit]) -> str:
    """One row per tenant, and a last line on the device. Blocks leave out the null block."""
    rows = [HEADINGS, *(_row(config, name, fit) for name, fit in fits.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(_cells(row, widths)).rstrip() for row in rows]
    granted = sum(fit.grant_bytes for fit in fits.values())
    lines.append(
        f"device {mib(config.device.memory)}, in no share "
        f"{mib(config.device.memory - granted)}, policy {config.policy.value}, "
        f"{config.block_tokens} tokens per KV block"
    )
    return "\n".join(lines)


def _row(config: Config, name: str, fit: Fit) -> tuple[str, ...]:
    return (
        name,
        f"{config.tenant(name).share:g} %",
        mib(fit.grant_bytes),
        mib(fit.parameter_bytes),
        f"{fit.layers} x {mib(fit.layer_bytes)}",
        str(fit.base_blocks - 1),
        mib(fit.spare_bytes),
        f"{fit.max_blocks - 1} blocks",
    )


def _cells(row: tuple[str, ...], widths: list[int]) -> list[str]:
    """Names to the left, figures to the right."""
    figures = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return [row[0].ljust(widths[0]), *figures]
