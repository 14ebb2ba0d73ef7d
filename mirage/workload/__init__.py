"""Requests to a server: traces, their lengths, and the tenant of each request."""
