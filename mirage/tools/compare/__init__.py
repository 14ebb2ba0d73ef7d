"""``mirage compare``: runs of any replays and simulations beside each other."""
