"""Log lines of a server, of engines, and lines of progress for the user."""
