"""Requests that an engine has not finished when it ends: they are answered with an error.

vLLM says of them that they were aborted, and its API server makes a complete answer of the text so
far: status 200, with a finish reason that hardly a client looks at. Here it says that they failed,
of which its API server makes an error on every route, in streams too.
"""

from __future__ import annotations

from vllm.v1.engine.core import EngineCoreProc


def answer_with_errors() -> None:
    """From now on in this process. A second call does nothing."""
    EngineCoreProc._send_abort_outputs_to_client = EngineCoreProc._send_error_outputs_to_client
