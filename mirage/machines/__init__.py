"""Machines with devices: device servers are started or adopted there, called, and watched."""
