"""Processes for scripts in which torch and vLLM are imported already.

To import vLLM takes ten seconds of computing, more than many scripts take themselves. Here one
process imports it and does nothing else, and each script runs in a fork of that process (Python's
forkserver). Forks share the imports and no state: no thread runs, no model was built, and no random
number was drawn before the fork. How imports affect each other is tested in `test_fresh_import.py`,
whose processes are new ones.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
import traceback
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import tiny  # noqa: F401  # its environment counts while vLLM is imported

from tests import kinds

ROOT = Path(__file__).parents[2]
# vLLM's CPU worker is left out: it changes torch for the whole process.
IMPORTED = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.opt",
    "mirage.engine.executor",
    "mirage.engine.probe",
)

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(IMPORTED))


def begin(
    script: Path,
    words: list[str],
    *,
    out: Path,
    err: Path,
    environment: Mapping[str, str] | None = None,
) -> ForkServerProcess:
    """Run a script with the arguments `words` as a fork, in the project's folder; its output is
    appended to the files.
    """
    arguments = (str(script), words, str(out), str(err), {**os.environ, **(environment or {})})
    _import_on_this_processor()
    child = _CONTEXT.Process(target=_become, args=arguments)
    child.start()
    return child


def _import_on_this_processor() -> None:
    """Let the forkserver import vLLM as on this processor. A fork may be told to act as on another
    one, but all are forks of one process.
    """
    told = os.environ.pop(kinds.VARIABLE, None)
    try:
        forkserver.ensure_running()
    finally:
        if told is not None:
            os.environ[kinds.VARIABLE] = told


def _become(script: str, words: list[str], out: str, err: str, environment: dict[str, str]) -> None:
    """In the forked child, do what `python script words` would do, and end as it would."""
    from vllm.model_executor.models import registry

    for path, number in ((out, 1), (err, 2)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    # vLLM looks at each new class of models in one more process, lest CUDA be initialised in this.
    registry._run_in_subprocess = lambda fn: fn()
    sys.argv = [script, *words]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    finally:
        # multiprocessing leaves them out.
        atexit._run_exitfuncs()
