"""Decisions on the memory that every tenant shall hold, and when: pure code for both ends of the
control socket."""
