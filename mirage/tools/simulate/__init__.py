"""`mirage simulate`: runs of `mirage.simulate` in processes of their own, and their reports."""
