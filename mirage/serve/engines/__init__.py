"""One engine of a tenant: command line, start, processes, run, and who keeps it running."""
