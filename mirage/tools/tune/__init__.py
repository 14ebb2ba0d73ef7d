"""`mirage tune`: the settings with which a configuration serves a trace best, by simulation."""
