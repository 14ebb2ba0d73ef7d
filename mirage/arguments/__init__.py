"""Arguments of vLLM that MIRAGE serves, and the reasons for refusing others."""
