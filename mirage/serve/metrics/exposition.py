"""Metrics of several engines or devices merged into one text, without parsing their lines. Pure.

Samples of a family have to stand together, so answers are cut into families, which are joined anew.
The parser of prometheus_client would take a second for the metrics of eight engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

PIECES = re.compile(rb"^(?=# HELP )", re.MULTILINE)
"""Beginning of each family."""
HEAD = re.compile(rb"# HELP (\S+)[^\n]*\n(?:#[^\n]*\n)*")
SAMPLE = re.compile(rb"^([a-zA-Z_:][\w:]*)(\{?)", re.MULTILINE)
"""Name of a sample, and the brace before its labels."""
DEVICE = "device"
"""Label with the name of a device, if there are several."""
Labels = Mapping[str, str]
"""Label values by the labels' names; values need no quoting."""
OF_PYTHON = b"python_"
"""Beginning of the names of families about the Python interpreter, which are left out."""
CREATED = b"_created"
"""End of the names of families with times of creation, which are left out: no dashboard uses
them.
"""


class ToldFamily(NamedTuple):
    """A family of metrics: its comments, and its samples, in whole lines."""

    head: bytes
    samples: bytes


ToldMetrics = Mapping[bytes, ToldFamily]
"""Families of one answer, by name."""


def of_device(name: str) -> Labels:
    """Labels for metrics of a device; none if its name is empty, as for the only device."""
    return {DEVICE: name} if name else {}


def families(text: bytes, labels: Labels) -> ToldMetrics:
    """Families of an answer, but for those about Python and about times of creation. All samples of
    a family get those of the `labels` that its first sample lacks.

    vLLM puts its model's name only on its own metrics.
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
    """Answers of different models or devices as one text.

    Comments of a family are those of the first answer that has it. Families without samples are
    left out.
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
    """Samples with those `labels` added that the first sample lacks."""
    first = samples[: samples.find(b"\n")]
    lacks = [name for name in labels if not re.search(rf'[{{,]{name}="'.encode(), first)]
    if not lacks:
        return samples
    label = ",".join(f'{name}="{labels[name]}"' for name in lacks).encode()
    return SAMPLE.sub(
        lambda name: name[1] + b"{" + label + (b"," if name[2] else b"}"),
        samples,
    )
