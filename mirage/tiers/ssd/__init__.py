"""KV blocks on a disk, below the host pool: bounded, evicting, believed only if whole."""
