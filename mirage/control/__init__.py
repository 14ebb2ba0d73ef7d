"""Decisions on the memory that every tenant shall hold, and when: pure, at both ends of the control
socket.
"""
