"""Machines of a Ray cluster: the one room that imports Ray."""
