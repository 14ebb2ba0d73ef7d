"""Hooks of MIRAGE into vLLM. A port to a new version begins here.

- `given.py`: what vLLM is given by name: a worker, a scheduler, an executor, a connector.
- Our classes over vLLM's, functions of ours in the place of vLLM's, and names that are imported or
  called: stated where they are used, in `mirage/engine`, and read from there by their syntax.
- `reached.py`: names that our code reaches through an object, which syntax does not tell.
- `VERSION.json`: all of those names as each version of vLLM has them that was tried, functions with
  their parameters.

docs/vllm-hooks.md is made from all that: each hook with its parameters, its place in our code, and
the differences between versions. `mirage doctor` compares these names with the installed vLLM.
"""
