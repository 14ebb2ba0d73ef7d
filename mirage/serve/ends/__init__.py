"""An engine that has ended: what that says of its requests, and when it starts again. Pure."""
