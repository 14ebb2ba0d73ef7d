"""Formats of trace files: one module for each, and a registry that recognises a file by its
beginning.
"""
