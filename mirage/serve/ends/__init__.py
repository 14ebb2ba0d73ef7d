"""End of an engine: the evidence against its requests, and the time of its next start. Pure."""
