"""Small models without training, whose greedy texts do not depend on rounding."""
