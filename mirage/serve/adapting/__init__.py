"""LoRA adapters that an engine loads and lets go while it runs, as its tenant declares them."""
