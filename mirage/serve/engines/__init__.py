"""One engine of a tenant: command line, start, processes, run, and the manager that keeps it
running.
"""
