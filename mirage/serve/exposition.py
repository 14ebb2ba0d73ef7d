"""Metrics of several engines or devices as one text, without reading their lines. Pure.

Samples of a family have to stand together, so answers are cut at their families and laid together
anew. prometheus_client's parser would take a second for what eight engines tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

PIECES = re.compile(rb"^(?=# HELP )", re.MULTILINE)
"""Begin of each family."""
HEAD = re.compile(rb"# HELP (\S+)[^\n]*\n(?:#[^\n]*\n)*")
SAMPLE = re.compile(rb"^([a-zA-Z_:][\w:]*)(\{?)", re.MULTILINE)
"""Name of a sample, and the brace before its labels."""
DEVICE = "device"
"""Label with the name of one of several devices."""
Labels = Mapping[str, str]
"""Values by the labels' names; they need no quoting."""
OF_PYTHON = b"python_"
"""Begin of families that tell of an interpreter alone."""
CREATED = b"_created"
"""End of families that tell when others began: dashboards ask for none."""


class ToldFamily(NamedTuple):
    """A family of metrics: its comments, and its samples, in whole lines."""

    head: bytes
    samples: bytes


ToldMetrics = Mapping[bytes, ToldFamily]
"""Families of one answer by their names."""


def of_device(name: str) -> Labels:
    """Labels of one of several devices; none for the only one, which has no name."""
    return {DEVICE: name} if name else {}


def families(text: bytes, labels: Labels) -> ToldMetrics:
    """Families of an answer in which each sample has these `labels`.

    vLLM gives its model's name to its own metrics alone.
    """
    found: dict[bytes, ToldFamily] = {}
    for piece in PIECES.split(text if text.endswith(b"\n") else text + b"\n"):
        if (head := HEAD.match(piece)) is None:
            continue
        name = head[1]
        if not name.startswith(OF_PYTHON) and not name.endswith(CREATED):
            found[name] = ToldFamily(head[0], _labelled(piece[head.end() :], labels))
    return found


def merged(answers: Iterable[ToldMetrics]) -> bytes:
    """Answers of different models or devices, as one text.

    Comments are those of the first that has them. A family without samples is left out.
    """
    found: dict[bytes, list[ToldFamily]] = {}
    for answer in answers:
        for name, family in answer.items():
            if family.samples:
                found.setdefault(name, []).append(family)
    pieces: list[bytes] = []
    for told in found.values():
        pieces.append(told[0].head)
        pieces += [family.samples for family in told]
    return b"".join(pieces)


def _labelled(samples: bytes, labels: Labels) -> bytes:
    """Samples with those labels that the first one lacks."""
    first = samples[: samples.find(b"\n")]
    lacks = [name for name in labels if not re.search(rf'[{{,]{name}="'.encode(), first)]
    if not lacks:
        return samples
    label = ",".join(f'{name}="{labels[name]}"' for name in lacks).encode()
    return SAMPLE.sub(
        lambda name: name[1] + b"{" + label + (b"," if name[2] else b"}"),
        samples,
    )
