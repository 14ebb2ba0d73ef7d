"""A report as one self-contained HTML file, made of sections of few kinds.

A block is a string, which becomes a paragraph, or `Markup`, which is inserted unchanged. All other
text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, ParamSpec

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from mirage.tools.report import comparison, drawing

P = ParamSpec("P")


@dataclass(frozen=True)
class Section:
    """Blocks on one card under a title; `kind` is ``answer`` for the section to be read first."""

    title: str
    blocks: Sequence[str]
    kind: str = "card"


@dataclass(frozen=True)
class Document:
    """A page: its title in the browser, its heading, blocks without a card, and sections."""

    title: str
    heading: str
    lead: Sequence[str]
    sections: Sequence[Section]

    def render(self) -> str:
        """The page as HTML; the same text for equal documents."""
        folder = jinja2.FileSystemLoader(Path(__file__).parent)
        environment = jinja2.Environment(
            loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        return environment.get_template("document.html.j2").render(page=self)


@dataclass(frozen=True)
class Picture(Generic[P]):
    """A drawing with a title, and a note for its readers."""

    title: str
    note: str
    draw: Callable[P, Figure]

    def section(self, *args: P.args, **kwargs: P.kwargs) -> Section:
        """Section with the picture, drawn from these arguments in the style of all reports."""
        with drawing.style():
            drawn = drawing.inline(self.draw(*args, **kwargs), self.title)
        return Section(self.title, [self.note, drawn])


def picture(title: str, note: str) -> Callable[[Callable[P, Figure]], Picture[P]]:
    """Decorator that makes a `Picture` of the function that draws it."""
    return lambda draw: Picture(title, note, draw)


def verdict(text: str, kind: str = "good") -> Markup:
    """A framed sentence; `kind` is ``good``, ``bad``, or ``open`` if there is no result."""
    return Markup('<div class="verdict {}">{}</div>').format(kind, text)


def facts(of: Iterable[tuple[str, str]], kind: str = "facts") -> Markup:
    """A list of terms and descriptions; `kind` is ``pairs`` for two of them on a line."""
    return Markup('<dl class="{}">{}</dl>').format(kind, _each("<dt>{}</dt><dd>{}</dd>", of))


def points(of: Iterable[str]) -> Markup:
    """A list with bullets."""
    return Markup("<ul>{}</ul>").format(_each("<li>{}</li>", ((each,) for each in of)))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "numbers", chosen: str = ""
) -> Markup:
    """A table of rows under a head, which may be empty; cells are text, or `Markup` of a ``td``.

    `kind` is ``text`` for cells with sentences; the row whose first cell is `chosen` is
    highlighted.
    """
    top = Markup("<thead><tr>{}</tr></thead>").format(_each("<th>{}</th>", zip(head)))
    body = (("chosen" if row[0] == chosen else "row", Markup().join(map(_td, row))) for row in rows)
    return Markup('<table class="{}">{}<tbody>{}</tbody></table>').format(
        kind, top if head else "", _each('<tr class="{}">{}</tr>', body)
    )


def cell(text: str, beside: str | None = None, below: str | None = None, kind: str = "") -> Markup:
    """A ``td`` with smaller text beside and below the main text; `kind` is ``best`` or
    ``number``.
    """
    small = Markup(" <small>{}</small>").format(beside) if beside else ""
    under = Markup("<br><small>{}</small>").format(below) if below else ""
    return Markup('<td class="{}">{}{}{}</td>').format(kind, text, small, under)


def side_by_side(
    note: str,
    policies: Sequence[str],
    rows: Sequence[comparison.ComparisonRow],
    tenants: Mapping[str, Sequence[comparison.ComparisonRow]],
) -> list[str]:
    """Blocks with a table of policies as columns, each in its colour, and one collapsed table for
    each tenant.
    """
    fold = Markup("<details><summary>{}</summary>{}</details>")
    parts = (fold.format(name, _compared(policies, part)) for name, part in tenants.items())
    return [note, _compared(policies, rows), *parts]


def _compared(policies: Sequence[str], rows: Sequence[comparison.ComparisonRow]) -> Markup:
    mark = Markup('<i style="background:{}"></i>{}')
    head = [mark.format(drawing.policy_colour(policies, each), each) for each in policies]
    return table(["", *head], ([row.label, *map(_figure, row.cells)] for row in rows))


def _figure(of: comparison.Cell) -> Markup:
    text = f"{of.text} {of.half}" if of.half else of.text
    return cell(text, of.ratio, of.range, "best" if of.best else "")


def _td(content: str) -> Markup:
    return content if isinstance(content, Markup) else cell(content)


def _each(form: str, of: Iterable[Iterable[Any]]) -> Markup:
    return Markup().join(Markup(form).format(*each) for each in of)
