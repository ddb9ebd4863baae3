"""A callback for Ray Train: `RunConfig(callbacks=[TraceMLCallback()])` traces the workers, also
where the driver was not started by `traceml run`."""

from __future__ import annotations

import os
from pathlib import Path

from traceml.integrations.library_support import missing_library
from traceml.trace.init import close, init_in_callback

try:
    from ray.train import get_context
    from ray.train.v2._internal.execution.callback import WorkerCallback
except ModuleNotFoundError as missing:
    raise missing_library(missing, __name__, "ray") from missing


class TraceMLCallback(WorkerCallback):  # type: ignore[misc]  # its package has no types
    """Makes one run of all workers; the machine of rank 0 has its summary.

    In a run of `traceml run` the workers are traced already, and this changes nothing.
    """

    def __init__(
        self,
        run_name: str | None = None,
        logs_dir: str | Path = "logs",
        trace_max_steps: int | None = None,
    ) -> None:
        """`logs_dir` is meant from where the driver runs: workers have another current folder.

        Where Ray starts the workers again, their run is called `run_name-restart-1`, and so on.
        """
        self._run_name = run_name
        self._logs_dir = str(Path(logs_dir).absolute())
        self._max_steps = trace_max_steps

    def after_init_train_context(self) -> None:
        """In each worker, before its process group is made."""
        context = get_context()
        place = {  # as Ray sets them itself a moment later
            "RANK": context.get_world_rank(),
            "WORLD_SIZE": context.get_world_size(),
            "LOCAL_RANK": context.get_local_rank(),
            "LOCAL_WORLD_SIZE": context.get_local_world_size(),
            "NODE_RANK": context.get_node_rank(),
        }
        os.environ.update({name: str(value) for name, value in place.items()})
        init_in_callback(self._run_name, self._logs_dir, self._max_steps)

    def before_worker_shutdown(self) -> None:
        """In each worker, after its training: Ray's workers end without Python's own clean-up."""
        close()
