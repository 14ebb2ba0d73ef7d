"""Memory of other GPUs for the pool: made by a holder process each, mapped by engines.

    mirage serve  --Lend, Return, Copy-->  holder of GPU 1  <--Want, Dropped--  engines of GPU 0
                  <--Failed, Returned----                   --Here, Gone, Drop->

A lease of `mirage.tiers.peers` is one piece of physical memory there. Engines map it when they
first copy from or to it. When nobody needs it any more, they let go of it first, then the holder
does, and only then the lease is over.
"""
