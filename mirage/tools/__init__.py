"""Tools that measure a server or size one. Nothing but `mirage.cli` imports them."""
