"""Layers at fixed addresses, some of them streamed: which, and how they come in time."""
