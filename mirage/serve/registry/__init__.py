"""Facts about the tenants of a device: those of now, and their memory over time."""
