"""What can go wrong with engines, beside a `mirage.config.ConfigError`."""

from mirage.errors import Failed


class EngineFailed(Failed):
    """An engine ended, or did not get ready in time; the message is one line."""
