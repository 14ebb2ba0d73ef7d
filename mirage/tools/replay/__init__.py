"""Replaying a trace against `mirage serve`: trace, workload, client, report."""
