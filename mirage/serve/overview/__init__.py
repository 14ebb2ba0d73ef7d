"""One device at a glance: memory by role, rates, latencies, last decisions; and the live page."""
