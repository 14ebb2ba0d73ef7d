"""Tenants that come and go where not all fit on the device: the roster's orders, carried out."""
