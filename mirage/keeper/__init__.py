"""Weights that outlive engines: a process that has their memory, and what it decides.

A *master* is the memory of one model's weights, as engines stream them. It is a sealed memory file
without a name, one for all tenants of the same weights.
"""
