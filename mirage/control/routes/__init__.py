"""Routes: the replica that a request goes to, and whether it may be sent again."""
