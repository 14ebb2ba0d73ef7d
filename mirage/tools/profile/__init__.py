"""`mirage profile`: measurements of this machine with real engines, written as a hardware file."""
