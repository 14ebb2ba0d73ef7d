"""Idle memory of other devices, lent until it is wanted back (Harvest).

peers = Peers({"gpu1": 2 * GIB})
peers.on_revoke("cache", gone)
lease = peers.alloc(64 * MIB, Hints(holder="cache"))
...
peers.free(lease)
"""
