"""The terminal application of ``mirage top``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Static

from mirage.errors import CommandFailed, InputRefused
from mirage.serve.admin.forms import OperatorAct
from mirage.serve.overview.forms import OverviewTold
from mirage.tools.top.confirming import Confirming
from mirage.tools.top.server import WatchedServer
from mirage.tools.top.view import (
    BAR,
    HEADINGS,
    TopRow,
    TopView,
    device_bar,
    in_lines,
    legend,
    row_bar,
    view,
    widths,
)

MARKS = (("█", "blue"), ("▓", "green"), ("▒", "yellow"), ("░", "bright_black"), ("·", "dim"))
"""Character and colour of each role on a bar, the last for free memory. The characters differ, so
colour is not needed.
"""
TAKING = frozenset({OperatorAct.SLEEP, OperatorAct.DRAIN, OperatorAct.STOP})
"""Acts that need a confirmation."""


class TopApp(App[None]):
    """Shows the overview of `server` every `every_s` seconds, and acts on the tenant under the
    cursor.
    """

    TITLE = "mirage top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Static { height: auto; }
    #away { color: $error; display: none; }
    DataTable { height: 1fr; min-height: 4; }
    #detail { height: 2; margin-top: 1; }
    #decisions { height: 6; border-top: solid $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("s", "act('sleep')", "Sleep"),
        ("w", "act('wake')", "Wake"),
        ("d", "act('drain')", "Drain"),
        ("x", "act('stop')", "Stop"),
        ("q", "quit", "Quit"),
    ]

    def __init__(
        self,
        server: WatchedServer,
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._server, self._every_s, self._clock = server, every_s, clock
        self._view: TopView | None = None
        self._asking = False
        self._answered, self._why_away = clock(), ""
        # Kept here, because an answer may come while the application closes and has no widgets.
        self._head = Static(Text("Nothing is known yet."), id="head")
        self._away, self._device = Static(id="away"), Static(id="device")
        self.table: DataTable[Text] = DataTable(
            cursor_type="row", cell_padding=0, zebra_stripes=True
        )
        self._detail, self._decisions = Static(id="detail"), Static(id="decisions")

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._away
        yield self._device
        yield self.table
        yield self._detail
        yield self._decisions
        yield Footer()

    def on_mount(self) -> None:
        self._columns()
        self.table.focus()
        self._look()
        self.set_interval(self._every_s, self._look)

    def on_resize(self) -> None:
        row = self._row()
        self._columns()
        self._draw()
        self._choose(row.name if row is not None else "")

    # -- asking -------------------------------------------------------------------------

    def _look(self) -> None:
        self._draw_away()
        if not self._asking:
            self._asking = True
            self._ask()

    @work(thread=True)
    def _ask(self) -> None:
        try:
            told = self._server.overview()
        except (InputRefused, CommandFailed) as error:
            self.call_from_thread(self._is_away, str(error))
        else:
            self.call_from_thread(self._is_told, told)

    def _is_told(self, told: OverviewTold) -> None:
        self._asking, self._why_away, self._answered = False, "", self._clock()
        self._view = view(told)
        self._draw_away()
        self._draw()

    def _is_away(self, why: str) -> None:
        self._asking, self._why_away = False, why
        self._draw_away()

    # -- acts ---------------------------------------------------------------------------

    def action_act(self, word: str) -> None:
        """Act on the tenant under the cursor, after a confirmation if the act takes something from
        users.
        """
        if (row := self._row()) is None:
            return
        act = OperatorAct(word)
        if act not in TAKING:
            self._act(row.name, act)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._act(row.name, act)

        requests = row.cells[-1].replace("+", " running and ")
        question = f"{act.capitalize()} {row.name}? Its requests: {requests} waiting."
        self.push_screen(Confirming(question), answered)

    @work(thread=True)
    def _act(self, name: str, act: OperatorAct) -> None:
        try:
            will = self._server.act(name, act)
        except (InputRefused, CommandFailed) as error:
            self.call_from_thread(self.notify, str(error), severity="error", markup=False)
        else:
            self.call_from_thread(self.notify, will, markup=False)

    def _row(self) -> TopRow | None:
        """Row of the tenant under the cursor; None if there are no tenants."""
        rows = self._view.rows if self._view is not None else []
        at = self.table.cursor_row
        return rows[at] if 0 <= at < len(rows) else None

    # -- drawing ------------------------------------------------------------------------

    def _draw(self) -> None:
        if (shown := self._view) is None:
            return
        self._head.update(Text(shown.title))
        parts = zip(MARKS, legend(shown), strict=True)
        words = [Text.assemble(mark, f" {text}") for mark, text in parts]
        lines = in_lines([word.plain for word in words], self.size.width)
        device = [_bar(device_bar(shown, self.size.width))]
        device += (Text("  ").join(words[number] for number in line) for line in lines)
        self._device.update(Text("\n").join(device))
        self._draw_rows(shown.rows)
        self._draw_detail()
        self._decisions.update(Text("\n".join(shown.decisions) or "No decision yet."))

    def _draw_rows(self, rows: Sequence[TopRow]) -> None:
        """Update changed cells in place, so that cursor and scroll position stay. The table is
        rebuilt if the set of tenants changed.
        """
        names = [str(key.value) for key in self.table.rows]
        wanted = [row.name for row in rows]
        if names != wanted:
            under = names[self.table.cursor_row] if names else ""
            self.table.clear()
            for row in rows:
                self.table.add_row(*self._cells(row), key=row.name)
            self._choose(under)
            return
        for number, row in enumerate(rows):
            for column, cell in enumerate(self._cells(row)):
                at = Coordinate(number, column)
                if self.table.get_cell_at(at) != cell:
                    self.table.update_cell_at(at, cell)

    def _choose(self, name: str) -> None:
        """Move the cursor to a tenant, if it has a row."""
        if name in self.table.rows:
            self.table.move_cursor(row=self.table.get_row_index(name))

    def _cells(self, row: TopRow) -> list[Text]:
        cells = [Text(text, no_wrap=True, overflow="ellipsis") for text in row.cells]
        cells[BAR] = _bar(row_bar(row, widths(self.size.width)[BAR] - 1))
        return cells

    def _columns(self) -> None:
        self.table.clear(columns=True)
        for heading, width in zip(HEADINGS, widths(self.size.width), strict=True):
            self.table.add_column(heading, width=width)

    def on_data_table_row_highlighted(self) -> None:
        self._draw_detail()

    def _draw_detail(self) -> None:
        row = self._row()
        self._detail.update(Text(row.detail if row is not None else "No tenant is served."))

    def _draw_away(self) -> None:
        quiet_s = self._clock() - self._answered
        away = bool(self._why_away) or quiet_s > 2 * self._every_s + 1
        since = f"No answer for {quiet_s:.0f} s; below is what was said last. {self._why_away}"
        self._away.display = away
        self._away.update(Text(since if away else ""))


def _bar(cells: Sequence[int]) -> Text:
    parts = zip(cells, MARKS, strict=False)
    return Text.assemble(*((mark * count, colour) for count, (mark, colour) in parts))
