"""Table about the fit of all tenants, for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mirage.arguments.check import normalised
from mirage.config import Config
from mirage.facts import ExpertFacts, KVGroup, KVGroups
from mirage.serve.fit.fit import Fit
from mirage.serve.fit.proven import verdict
from mirage.units import size

HEADINGS = ("tenant", "share", "grant", "parameters", "layers", "KV blocks", "left", "KV up to")


def fit_table(config: Config, fits: Mapping[str, Fit]) -> str:
    """Table with a row for each tenant, then lines about the device, then a line for each model.

    Numbers of blocks do not count the null block.
    """
    rows = [HEADINGS, *(_row(config, name, fit) for name, fit in fits.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(_cells(row, widths)).rstrip() for row in rows]
    granted = sum(fit.grant_bytes for fit in fits.values())
    free = config.device.memory - granted
    left = f"in no share {size(free)}" if free >= 0 else f"shares exceed it by {size(-free)}"
    lines.append(f"device {size(config.device.memory)}, {left}, policy {config.policy.value}")
    page = next((fit.page for fit in fits.values()), None)
    if page is not None and page.reason:
        lines.append(f"pages of {size(page.bytes)}: {page.reason}")
    lines += [_model_line(config, name, fit) for name, fit in fits.items()]
    return "\n".join(lines)


def _model_line(config: Config, name: str, fit: Fit) -> str:
    """Line on one model: its architecture, whether it was tried, and its KV cache."""
    arguments = normalised(config.tenant(name).engine_args)
    known = verdict(fit.architecture, fit.quantisation, arguments)
    parts = [
        f"{name}: {fit.architecture} ({known})",
        kv_words(fit.kv, config.block_tokens),
    ]
    if fit.kv.groups:
        longest = config.tenant(name).max_model_len
        parts.append(f"{fit.kv.request_blocks} KV blocks for {longest} tokens")
    if fit.stays is not None:
        parts.append(f"its layers stay: {fit.stays}")
    if fit.experts is not None:
        parts.append(expert_words(fit.experts))
    elif fit.experts_stay is not None:
        parts.append(f"its experts stay: {fit.experts_stay}")
    return "; ".join(parts)


def expert_words(experts: ExpertFacts) -> str:
    """Words such as ``"up to 7 of 8 experts of each of 32 layers can go, 10230.0 MiB for one of
    each"``.
    """
    gain = (experts.layers - 1) * sum(experts.slices)
    return (
        f"up to {experts.count - 1} of {experts.count} experts of each of {experts.layers} layers "
        f"can go, {size(gain)} for one of each"
    )


def kv_words(kv: KVGroups, asked: int) -> str:
    """Words such as ``"KV of 6 layers full_attention and 3 x 8 layers sliding_window, 32 tokens a
    block"``.

    They also tell if vLLM uses another block size than the one `asked` for.
    """
    if not kv.groups:
        return "no KV cache"
    same = Counter(kv.groups)
    several = len({group.block_tokens for group in kv.groups if group.grows}) > 1
    words = [_group_words(group, times, several) for group, times in same.items()]
    tokens = next((group.block_tokens for group in kv.groups if group.grows), 0)
    tail = "" if several or not tokens else f", {tokens} tokens a block"
    own = any(group.block_tokens != asked for group in kv.groups if group.grows)
    choice = f" (vLLM's own choice: block_tokens is {asked})" if own else ""
    return f"KV of {' and '.join(words)}{tail}{choice}"


def _group_words(group: KVGroup, times: int, several: bool) -> str:
    count = f"{times} x {group.layers}" if times > 1 else str(group.layers)
    length = f" of {group.block_tokens} tokens a block" if several and group.grows else ""
    return f"{count} layers {group.kind}{length}"


def _row(config: Config, name: str, fit: Fit) -> tuple[str, ...]:
    return (
        name,
        f"{config.tenant(name).percent:g} %",
        size(fit.grant_bytes),
        size(fit.parameter_bytes),
        f"{fit.layers} x {size(fit.layer_bytes)}",
        str(fit.base_blocks - 1) if fit.block_bytes else "none",
        size(fit.spare_bytes),
        f"{fit.max_blocks - 1} blocks" if fit.block_bytes else "none",
    )


def _cells(row: tuple[str, ...], widths: list[int]) -> list[str]:
    """Cells of a row, padded: names to the left, figures to the right."""
    figures = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return [row[0].ljust(widths[0]), *figures]
