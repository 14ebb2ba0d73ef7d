"""Executor with scheduler and worker in one process, as vLLM has it on one GPU.

vLLM's CPU platform turns the executor named ``uni`` into a multi-process one to bind OpenMP
threads. The launcher sets those in the environment before the process starts. So the engine can
keep its worker in the EngineCore process here too, and memory is mapped by the thread that
schedules.
"""

from vllm.v1.executor.uniproc_executor import UniProcExecutor

from mirage.engine import runtime
from mirage.engine.grammars import answer_with_reasons
from mirage.engine.unfinished import answer_with_errors

answer_with_reasons()  # here, since vLLM's API server imports this module and calls nothing in it


class InProcessExecutor(UniProcExecutor):
    """vLLM's single-process executor, under a name that the CPU platform leaves alone."""

    def _init_executor(self) -> None:
        super()._init_executor()
        answer_with_errors()
        runtime.register(self.driver_worker.worker.mirage)
