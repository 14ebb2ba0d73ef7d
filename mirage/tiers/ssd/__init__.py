"""KV blocks on a disk, below the host pool: bounded, evicted, and used only if they are intact."""
