"""The ``vllm.general_plugins`` entry point: runs in every vLLM process, more than once."""


def register() -> None:
    """Nothing to do yet."""
