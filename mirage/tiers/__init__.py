"""KV blocks below the device: peers' memory, host memory, SSD, and the pool that holds them.

There is one pool for all tenants, in the process of the control server. It owns the memory and
decides which blocks stay; engines copy between the device and places in the pool.
"""
