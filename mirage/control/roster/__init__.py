"""Roster of a device that has no room for all tenants: their states, their bytes, and the order in
which they start or wake."""
