"""Folders and open files of a run: where they are, and what keeps them."""
