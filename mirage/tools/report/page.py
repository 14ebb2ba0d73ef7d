"""What reports on one HTML page share: their style, their tables, and drawings inside the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from mirage.tools.report.drawing import style

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def template(path: Path, *more: Path) -> jinja2.Template:
    """The page's own template, which may include those of this folder and of `more`."""
    folders = jinja2.FileSystemLoader((path.parent, *more, Path(__file__).parent))
    environment = jinja2.Environment(
        loader=folders, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(path.name)


@dataclass(frozen=True)
class Picture:
    """Inlined drawings with their heading and what to see in them: ``pictures.html.j2``."""

    title: str
    note: str
    svgs: Sequence[Markup]


def picture(title: str, note: str, draw: Callable[[], Figure]) -> Picture:
    """One drawing, in the style of all reports."""
    with style():
        return Picture(title, note, [inline(draw(), title)])


def inline(figure: Figure, name: str) -> Markup:
    """The figure as an ``<svg>`` element without outside references.

    `name` is what it shows, for those who cannot see it, and salts its ids: no two of a page
    have the same.
    """
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata=NO_METADATA)
    text = file.getvalue()
    said = f'<svg role="img" aria-label="{escape(name)}"'
    text = text[text.index("<svg") :].replace("<svg", said, 1)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)  # HTML knows them by itself
    return Markup(re.sub(r'<g id="[^"]*"', "<g", text))
