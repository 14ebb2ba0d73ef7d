"""Requests to a server: traces, lengths of requests, and the tenant of each request."""
