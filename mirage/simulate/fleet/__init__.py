"""Several simulated devices behind a router, in one simulated time. Each device has its own
world.
"""
