"""An operator's surface: states and acts of the tenants, on a Unix socket of the run's folder."""
