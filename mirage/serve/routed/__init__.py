"""What the router knows of tenants, and what it and the supervisor say to each other."""
