"""Machines with devices: servers started there or adopted, called, and missed when they go."""
