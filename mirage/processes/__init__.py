"""Processes that start and end, and what they leave behind."""
