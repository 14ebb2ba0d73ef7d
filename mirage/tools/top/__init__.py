"""``mirage top``: a live view of the tenants of a running server, in a terminal."""
