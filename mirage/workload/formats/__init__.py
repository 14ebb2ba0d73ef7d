"""Formats of trace files: one module each, and a registry that knows a file by its beginning."""
