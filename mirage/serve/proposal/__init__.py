"""Proposed configuration for a machine and the models to serve, if no file is given."""
