"""Memory of other GPUs for the pool: each has a holder process that makes it, and engines map it.

    mirage serve  --LendMemory, ReturnMemory, Copy-->      holder of GPU 1
                  <--Ready, LendFailed, Returned, Copied-- holder of GPU 1
    engine of GPU 0  --Want, Dropped-->                    holder of GPU 1
                     <--Here, Gone, Drop--                 holder of GPU 1

A lease of `mirage.tiers.peers` is one piece of physical memory on that GPU. Engines map it when
they first copy from or to it. When no block needs it any more, engines unmap it first, then the
holder releases it, and only then the lease is over.
"""
