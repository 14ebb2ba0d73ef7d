"""Several devices in one simulated time: each is a world as for one, behind a router."""
