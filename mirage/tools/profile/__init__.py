"""`mirage profile`: what this machine and its real engines take, as a hardware file."""
