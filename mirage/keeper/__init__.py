"""Weights that outlive engines: a process that has their memory, and what it decides.

A *master* here is all weights of one model in host memory, from which engines stream layers. It is
a sealed memory file without a name, one for all tenants of the same weights.
"""
