"""Start of engines up to their command lines: checks, questions to vLLM, and environment."""
