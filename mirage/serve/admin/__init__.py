"""Admin socket of a server: states of the tenants, and acts of operators on them."""
