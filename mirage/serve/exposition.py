"""Metrics of several engines as one text of Prometheus', without reading their lines. Pure.

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
MODEL = b'model_name="'
OF_PYTHON = b"python_"
"""Begin of families that tell of an interpreter alone."""
CREATED = b"_created"
"""End of families that tell when others began: dashboards ask for none."""


class ToldFamily(NamedTuple):
    """One family of metrics: its comments, and its samples, in whole lines."""

    head: bytes
    samples: bytes


ToldMetrics = Mapping[bytes, ToldFamily]
"""Families of one engine by their names."""


def families(text: bytes, model: str) -> ToldMetrics:
    """Families of an engine's answer, in which each sample has the label ``model_name``.

    vLLM gives it to its own metrics alone. `model` is a tenant's name, which needs no quoting.
    """
    found: dict[bytes, ToldFamily] = {}
    for piece in PIECES.split(text if text.endswith(b"\n") else text + b"\n"):
        if (head := HEAD.match(piece)) is None:
            continue
        name = head[1]
        if not name.startswith(OF_PYTHON) and not name.endswith(CREATED):
            found[name] = ToldFamily(head[0], _labelled(piece[head.end() :], model))
    return found


def merged(answers: Iterable[ToldMetrics]) -> bytes:
    """One text of the answers of different models; comments are those of the first that has them.

    A family without samples is left out.
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


def _labelled(samples: bytes, model: str) -> bytes:
    """Samples with the label, unless the first one has it."""
    if MODEL in samples[: samples.find(b"\n")]:
        return samples
    label = MODEL + model.encode() + b'"'
    return SAMPLE.sub(
        lambda name: name[1] + b"{" + label + (b"," if name[2] else b"}"),
        samples,
    )
