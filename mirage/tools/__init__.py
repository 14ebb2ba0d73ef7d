"""Commands that measure a server or size one. Only `mirage.cli` imports them."""
