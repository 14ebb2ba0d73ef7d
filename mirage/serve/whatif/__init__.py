"""Latencies of tenants if another configuration held, by the requests of the last hour."""
