"""Weights by content: a folder per machine, filled from an operator's folder or by another machine.

A model is a manifest, and its name in the store is the hash of that. Files are kept once for each
content, and a model is a folder of links to them, which is there when all of it is. Machines give
each other ranges of files over HTTP, and a receiver believes nothing but hashes.
"""
