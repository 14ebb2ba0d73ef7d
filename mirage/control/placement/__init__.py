"""Placement of models on several devices: proposed by heuristics, chosen by a judge, reached in
additive steps.
"""
