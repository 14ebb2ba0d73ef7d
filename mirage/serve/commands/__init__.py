"""Commands beside `mirage serve`: check, fetch, stop and weights."""
