"""The supervisor's side of its router: the table pushed, requests admitted, the process kept."""
