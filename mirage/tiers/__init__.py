"""KV blocks below the device: peers' memory, host memory, SSD, and the pool that holds them.

One pool for all tenants, in the process of the control server. It owns the memory and decides
what stays; engines copy between the device and its places.
"""
