"""Models of a hub: which of their files are used, and how they get into huggingface_hub's cache.

huggingface_hub's settings name the hub, its cache and the token. This package fetches the files
itself, one by one: each is complete with the checksum that the hub states, or absent.
"""
