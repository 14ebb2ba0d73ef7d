"""`mirage explain`: what the paper's arithmetic says of a configuration, with nothing run."""
