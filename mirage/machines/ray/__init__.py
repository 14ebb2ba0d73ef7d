"""Machines of a Ray cluster. This is the only package that imports Ray."""
