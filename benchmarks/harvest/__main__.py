"""Print what a peer gains over host memory: copies, reloads of KV, experts that lie elsewhere.

.venv/bin/python -m benchmarks.harvest
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.harvest import figures
from mirage.units import MIB, size

COPIES = (MIB, 16 * MIB, 352 * 10**6)
"""Bytes; the last is an expert of Mixtral."""
SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
"""Parts of each layer's experts that are away from the device."""


def main() -> None:
    for part in (copies(), reloads(), experts()):
        print("\n".join(markdown(list(part))), end="\n\n")


def copies() -> Iterator[list[str]]:
    """Rows of the table with the ratios for one copy, by its bytes."""
    yield ["one copy", "host / peer, one way", "both ways"]
    for nbytes in COPIES:
        yield [size(nbytes), *_ratios(nbytes)]


def reloads() -> Iterator[list[str]]:
    """Rows of the table with the ratios for reloading entries of Kimi-K2's KV cache."""
    yield ["entries of Kimi-K2's KV", "host / peer, one way", "both ways"]
    for entries in figures.ENTRIES:
        yield [f"{entries:,}", *_ratios(entries * figures.KIMI_TOKEN)]


def experts() -> Iterator[list[str]]:
    """Rows of the table with the gain in tokens per second by model and batch, for each part of the
    experts that is away.
    """
    columns = [figures.expert_gains(share) for share in SHARES]
    yield ["tokens a step", *(f"{100 * share:g} % of the experts" for share in SHARES)]
    rows = [(name, batch) for name in figures.MIXTURES for batch in figures.BATCHES]
    for (name, batch), gains in zip(rows, zip(*columns, strict=True), strict=True):
        yield [f"{name}, {batch:,}", *(f"{gain:+.0f} %" for gain in gains)]


def _ratios(nbytes: int) -> list[str]:
    return [f"{figures.reload_ratio(nbytes, one_way):.2f}x" for one_way in (True, False)]


def markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table, its headings first."""
    head, *others = rows
    yield f"| {' | '.join(head)} |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    yield from (f"| {' | '.join(cells)} |" for cells in others)


if __name__ == "__main__":
    main()
