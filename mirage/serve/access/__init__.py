"""Keys and limits: who may send which requests to the router, and how many."""
