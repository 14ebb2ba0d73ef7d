"""`mirage simulate`: runs of `mirage.simulate` in separate processes, and their reports."""
