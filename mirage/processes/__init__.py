"""Processes that end, and what they leave behind."""
