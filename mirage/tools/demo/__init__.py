"""Small models made from nothing, whose greedy texts do not depend on rounding."""
