"""Engines of a server that was killed, and the next server, which has them."""
