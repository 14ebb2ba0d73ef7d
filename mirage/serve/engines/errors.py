"""Errors of engines."""

from mirage.errors import CommandFailed


class EngineFailed(CommandFailed):
    """An engine ended, or did not get ready in time; the message is one line."""
