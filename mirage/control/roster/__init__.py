"""Who is awake on a device that has no room for all: states, bytes, and the order of coming."""
