"""Deciding half of an engine: vLLM's scheduler and the simulated engine call the same code."""
