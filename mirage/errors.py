"""What ends a command with one line instead of a traceback, and its exit code."""

from __future__ import annotations


class InputRefused(ValueError):
    """What the user can correct; the message is one line: what, which value, what to do."""


class CommandFailed(Exception):
    """What went wrong on the way; the message is one line."""
