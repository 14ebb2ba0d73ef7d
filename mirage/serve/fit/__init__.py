"""Fit of models into a device's memory, and what `mirage check` says about it."""
