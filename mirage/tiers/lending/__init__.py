"""Memory of other GPUs for the pool: each has a holder process that makes it, and engines map it.

    mirage serve  --Lend, Return, Copy-->  holder of GPU 1  <--Want, Dropped--  engines of GPU 0
                  <--Failed, Returned----                   --Here, Gone, Drop->

A lease of `mirage.tiers.peers` is one piece of physical memory on that GPU. Engines map it when
they first copy from or to it. When no block needs it any more, engines unmap it first, then the
holder releases it, and only then the lease is over.
"""
