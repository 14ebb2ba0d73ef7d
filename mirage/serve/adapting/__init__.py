"""LoRA adapters that an engine loads and unloads while it runs, as its tenant declares them."""
