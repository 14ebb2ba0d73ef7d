"""Limits of one client at the router: time, connections, bytes; and the answers beyond them."""
