"""APIs that clients speak: their routes, and the router's own answers in their forms."""
