"""One engine of a tenant: its command line, its start, its run, and who keeps it running."""
