"""What one client may take of the router: time, connections, bytes; and what each is told."""
