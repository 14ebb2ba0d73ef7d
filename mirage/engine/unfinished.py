"""Requests that an engine has not finished when it ends: they are answered with an error.

vLLM reports them as aborted, and its API server makes a complete answer of the text so far: status
200, with a finish reason that few clients look at. Here they are reported as failed, which its API
server turns into an error on every route, in streams too.
"""

from __future__ import annotations

from vllm.v1.engine.core import EngineCoreProc


def answer_with_errors() -> None:
    """Replace vLLM's function that reports requests as aborted by the one that reports them as
    failed, in this process. A second call does nothing."""
    EngineCoreProc._send_abort_outputs_to_client = EngineCoreProc._send_error_outputs_to_client
