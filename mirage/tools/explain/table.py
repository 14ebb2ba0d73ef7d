"""The arithmetic as text: a line and a table for each tenant, then the sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from mirage.tools.explain.arithmetic import Explained, Hidden
from mirage.tools.explain.machine import Machine
from mirage.tools.explain.sizes import milliseconds, rate
from mirage.units import size

WIDTH = 120
"""Width of a table in characters."""


def show(
    machine: Machine,
    found: Sequence[Explained],
    refused: Mapping[str, str],
    said: Sequence[str],
    console: Console,
) -> None:
    """Print tables and sentences. On a narrow terminal lines wrap, so that no figure is cut off."""
    console.width = max(console.width, WIDTH)
    why = f"{machine.name}: {machine.why}" if machine.why else machine.name
    link = rate(machine.hardware.link_gb_s.value)
    console.out(f"{machine.hardware.title} ({why}), link {link} GB/s", highlight=False)
    for one in found:
        console.out(f"\n{_line(one)}", highlight=False)
        console.print(_table(one))
    console.out("", highlight=False)
    for name, why in refused.items():
        console.out(f"{name} is not explained: {why}", highlight=False)
    for sentence in said:
        console.out(sentence, highlight=False)


def _line(one: Explained) -> str:
    tokens = one.share_blocks * one.block_tokens
    return (
        f"{one.name}: {one.model}, {one.layers} layers of {size(one.layer_bytes)}, of which "
        f"{one.most_remapped} may go; T_T {milliseconds(one.load_s)} ms\n"
        f"{one.name}: {tokens:,} tokens of KV in its share; at most {one.most_requests} requests "
        f"of {one.context:,} tokens at a time"
    )


def _table(one: Explained) -> Table:
    headings = ("batch", "T_c ms", "layers", "slots", "KV gained", "blocks", "tokens")
    links = ("1 from GB/s", f"{one.most_remapped} from GB/s")
    made = Table(*headings, *links, box=None, pad_edge=False)
    for column in made.columns:
        column.justify, column.no_wrap = "right", True
    for hidden in one.hidden:
        made.add_row(*_cells(hidden, hidden.batch <= one.most_requests))
    return made


def _cells(hidden: Hidden, runs: bool) -> tuple[str, ...]:
    """Cells of a row. A batch that the engine cannot run (`runs` is False) is in brackets."""
    return (
        str(hidden.batch) if runs else f"({hidden.batch})",
        milliseconds(hidden.compute_s),
        str(hidden.layers_remapped),
        str(hidden.stream_slots),
        size(hidden.kv_bytes),
        f"{hidden.kv_blocks:,}",
        f"{hidden.kv_tokens:,}",
        rate(hidden.one_layer_gb_s),
        rate(hidden.all_layers_gb_s),
    )
