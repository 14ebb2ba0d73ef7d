"""KV blocks of a decoding batch over device, host memory and SSD, block by block. Pure.

More requests decode than the device has room for, so they take turns in the batch, and the KV
blocks of those that wait lie below. Six policies, after TierKV, say which blocks go down and
which come up ahead of need; the links are shared and carry what they carry.
"""
