"""Sharing of a GPU between tenants: the active ones, the order of turns, and the order in which
tenants give memory."""
