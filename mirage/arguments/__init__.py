"""Which of vLLM's arguments MIRAGE serves, and what it says of the others."""
