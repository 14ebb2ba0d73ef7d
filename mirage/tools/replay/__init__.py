"""`mirage replay`: replays a trace against a server: workload, client, report."""
