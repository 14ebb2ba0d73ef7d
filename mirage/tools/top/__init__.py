"""``mirage top``: the tenants of a running server as they go, in a terminal."""
