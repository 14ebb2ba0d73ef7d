"""Configurations applied to a running server: differences, edits, and the file that keeps them."""
