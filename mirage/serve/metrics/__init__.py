"""Prometheus metrics of a device."""
