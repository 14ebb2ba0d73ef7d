"""What is asked of a server: traces, lengths, and which tenant gets which request."""
