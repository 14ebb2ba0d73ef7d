"""A configuration applied to a server that runs: the difference, and what outlives the server."""
