"""``mirage traces``: public traces, listed and fetched."""
