"""Keys and limits: who may ask the router for what, and how much of it."""
