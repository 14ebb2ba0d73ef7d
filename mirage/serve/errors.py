"""What can go wrong with engines, beside a `mirage.config.ConfigError`."""


class EngineFailed(Exception):
    """An engine ended, or did not get ready in time; the message is one line."""
