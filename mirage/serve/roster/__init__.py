"""Tenants that sleep and wake where not all fit on the device: carries out the roster's orders."""
