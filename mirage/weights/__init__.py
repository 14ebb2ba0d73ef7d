"""Weights by content: a store for each machine, filled from a folder or by other machines.

A model is a manifest, and its id in the store is the hash of the manifest. A file's content is kept
once, and a model is a folder of links to contents, which exists when all of them are there.
Machines send each other ranges of files over HTTP, and a receiver checks each of them by its hash.
"""
