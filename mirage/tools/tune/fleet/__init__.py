"""`mirage tune --devices`: the number of devices that a workload needs, and the saving by each
step.
"""
