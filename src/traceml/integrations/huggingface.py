"""A callback for the Trainer of transformers, and those of TRL that are made from it:
`Trainer(callbacks=[TraceMLCallback()])`, or `report_to="traceml"` once this module is imported.

It traces the training also where that was not started by `traceml run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traceml.integrations.library_support import missing_library, name_methods, say_if_untested
from traceml.model.library_versions import VersionRange
from traceml.trace.init import init
from traceml.trace.verbs import log_metrics

try:
    import transformers
    import transformers.integrations as reporting
except ModuleNotFoundError as missing:
    raise missing_library(missing, __name__, "transformers") from missing

_TESTED = VersionRange("transformers", "4.45", "6")
_REGIONS = (
    ("Trainer", "evaluate", "evaluation"),
    ("Trainer", "predict", "prediction"),
    ("Trainer", "log", "logging"),
    ("Trainer", "_save_checkpoint", "checkpoint"),
    ("Trainer", "save_model", "checkpoint"),
    ("GenerationMixin", "generate", "generation"),
)
"""A class, its method, and the region that the method's calls become."""


class TraceMLCallback(transformers.TrainerCallback):  # type: ignore[misc]  # it has no types
    """Begins a run, or joins the one that is there, and names the phases of the Trainer.

    `evaluation`, `prediction`, `generation` (also during training and evaluation), `checkpoint` and
    `logging` become named regions of the run. What the Trainer logs is recorded as its metrics.
    """

    def __init__(
        self,
        run_name: str | None = None,
        logs_dir: str | Path = "logs",
        overwrite: bool = False,
        trace_max_steps: int | None = None,
    ) -> None:
        """The arguments of `traceml.init`."""
        init(run_name, logs_dir, overwrite, trace_max_steps)
        say_if_untested(_TESTED)
        for owner, method, region in _REGIONS:
            name_methods(getattr(transformers, owner, None), [method], region)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Record what the Trainer logs: its own values and those of `compute_metrics`."""
        numbers = {name: value for name, value in (logs or {}).items() if _is_number(value)}
        if numbers and state.is_world_process_zero:
            log_metrics(numbers, state.global_step)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _let_report_to_find(callback: type) -> None:
    """Give the callback a name for `report_to`: the library has a table of names for it, and no
    other way to add one."""
    known = getattr(reporting.integration_utils, "INTEGRATION_TO_CALLBACK", None)
    if isinstance(known, dict):
        known.setdefault("traceml", callback)


_let_report_to_find(TraceMLCallback)
