"""GPU sharing between tenants: who is active, whose turn it is, who yields memory first."""
