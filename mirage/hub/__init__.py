"""Models that a hub has: which files are served, and how they come into huggingface_hub's cache.

huggingface_hub says where the hub and its cache are, and which token opens it. Files are fetched
here: one by one, whole and with the checksum that the hub tells, or not there.
"""
