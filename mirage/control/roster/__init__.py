"""Roster of a device that has no room for all tenants: states, bytes, and the order in which they
come.
"""
