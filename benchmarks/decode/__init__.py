"""KV blocks of a decoding batch over device, host memory and SSD, block by block. Pure.

More requests decode than the device has room for. So they take turns in the batch, and the KV
blocks of waiting requests are on the tiers below. Six policies, after TierKV, decide which blocks
are copied down, and which are loaded before they are needed. The copies share the links.
"""
