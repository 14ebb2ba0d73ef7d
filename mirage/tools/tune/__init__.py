"""`mirage tune`: search, by simulation, for the settings with which a configuration serves a trace
best.
"""
