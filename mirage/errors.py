"""Errors that end a command with one line instead of a traceback."""

from __future__ import annotations


class InputRefused(ValueError):
    """Input that the user can correct; the message is one line: what, which value, what to do."""


class CommandFailed(Exception):
    """A command failed while it ran; the message is one line."""
