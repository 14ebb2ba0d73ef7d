"""Models that a configuration names: their folders, shapes, step times, and weights on the way."""
