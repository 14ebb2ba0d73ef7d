"""A dialog that asks for confirmation of an act."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Static


class Confirming(ModalScreen[bool]):
    """Screen that asks one question and returns the answer; Escape means no."""

    CSS = """
    Confirming { align: center middle; }
    Confirming Static { width: auto; max-width: 76; padding: 1 2; border: round $warning; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "Yes"),
        ("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._question}\n\ny: yes    n: no"))

    def action_answer(self, yes: bool) -> None:
        """Close the dialog with the answer."""
        self.dismiss(yes)
