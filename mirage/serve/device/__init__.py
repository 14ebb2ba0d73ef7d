"""One device as it is served: its control server, tenants, tiers, and keeper of weights."""
