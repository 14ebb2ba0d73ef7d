"""``mirage compare``: any runs of replays and simulations beside each other."""
