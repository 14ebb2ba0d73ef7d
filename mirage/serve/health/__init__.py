"""Health of a device and its engines: whether they answer, and which answers they owe."""
