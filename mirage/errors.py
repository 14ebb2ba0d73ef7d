"""Errors that end a command with one line instead of a traceback."""

from __future__ import annotations


class InputRefused(ValueError):
    """Error: the user can correct some input; the message is one line: what, which value, what to
    do."""


class CommandFailed(Exception):
    """Error: a command failed while it ran; the message is one line."""
