"""The simulator: the deciding code of a server, over engines and a GPU whose times are computed."""
