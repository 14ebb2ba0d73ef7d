"""Tenants as the router knows them, and the messages between it and the supervisor."""
