"""Tenants that come and go where not all fit on the device: carries out the roster's orders."""
