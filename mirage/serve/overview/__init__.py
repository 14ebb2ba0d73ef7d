"""Overview of one device: memory by role, rates, latencies, last decisions; and the live page."""
