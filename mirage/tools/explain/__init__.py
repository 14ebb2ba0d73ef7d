"""`mirage explain`: the paper's arithmetic for a configuration. No engine runs."""
