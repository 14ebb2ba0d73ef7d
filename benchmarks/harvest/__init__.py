"""Harvest's figures by arithmetic: KV blocks and experts on a peer or in host memory.

``python -m benchmarks.harvest`` prints them; `benchmarks.claims` judges the document's by them.
"""
