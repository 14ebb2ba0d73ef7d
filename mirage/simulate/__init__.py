"""The simulator: the same deciding code over engines and a GPU that are only computed."""
