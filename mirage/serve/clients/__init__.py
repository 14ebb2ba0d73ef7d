"""Limits for one client at the router: time, connections, bytes; and answers beyond them."""
