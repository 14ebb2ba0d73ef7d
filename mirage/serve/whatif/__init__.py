"""Predicted latencies under another configuration, by the requests of the last hour."""
