"""A tracker for Accelerate: `Accelerator(log_with=[TraceMLTracker()])` traces the training, also
where it was not started by `traceml run`, and records what the script logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traceml.integrations.library_support import (
    is_first_rank,
    missing_library,
    say_if_untested,
)
from traceml.integrations.zero_code import name_accelerator_phases
from traceml.model.library_versions import VersionRange
from traceml.trace.current import current
from traceml.trace.init import init
from traceml.trace.verbs import log_artifact, log_metrics, log_params

try:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker
except ModuleNotFoundError as missing:
    raise missing_library(missing, __name__, "accelerate") from missing

_TESTED = VersionRange("accelerate", "1.0", "2")


class TraceMLTracker(GeneralTracker):  # type: ignore[misc]  # its package has no types
    """Begins a run in every process that Accelerate starts, or joins the one that is there.

    `accelerator.init_trackers(…, config=…)` records parameters, `accelerator.log` metrics; the
    calls of `accelerator.log` and `accelerator.save_state` become named regions of the run.
    """

    name = "traceml"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self,
        run_name: str | None = None,
        logs_dir: str | Path = "logs",
        overwrite: bool = False,
        trace_max_steps: int | None = None,
    ) -> None:
        """The arguments of `traceml.init`."""
        super().__init__()
        init(run_name, logs_dir, overwrite, trace_max_steps)
        say_if_untested(_TESTED)
        name_accelerator_phases(Accelerator)

    @property
    def tracker(self) -> Path | None:
        """The folder of the run; `None` where tracing is off."""
        session = current()
        return None if session is None else session.run_folder

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record the configuration as the run's parameters."""
        if is_first_rank():
            log_params(values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Record values at a step of the script's count."""
        if is_first_rank():
            log_metrics(values, step)

    def log_artifact(self, file_path: str | Path, name: str | None = None, **_: Any) -> None:
        """Keep a file with the run."""
        if is_first_rank():
            log_artifact(file_path, name)
