"""Placement of models on several devices: proposed by heuristics, chosen by a judge, reached in
steps that start replicas before they stop others."""
