"""A callback for the Trainer of transformers, and those of TRL that are made from it:
`Trainer(callbacks=[TraceMLCallback()])`, or `report_to="traceml"` once this module is imported.

It traces the training also where that was not started by `traceml run`. Under that every Trainer
has one: see `zero_code.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from traceml.integrations.library_support import (
    guarded,
    missing_library,
    name_methods,
    say_if_untested,
)
from traceml.model.library_versions import VersionRange
from traceml.trace.init import init
from traceml.trace.verbs import log_metrics

try:
    import transformers
    import transformers.integrations as reporting
except ModuleNotFoundError as missing:
    raise missing_library(missing, __name__, "transformers") from missing

_TESTED = VersionRange("transformers", "4.45", "6")
_TRAINER, _GENERATION = "transformers.trainer", "transformers.generation.utils"
_REGIONS = (
    (_TRAINER, "Trainer", "evaluate", "evaluation"),
    (_TRAINER, "Trainer", "predict", "prediction"),
    (_TRAINER, "Trainer", "log", "logging"),
    (_TRAINER, "Trainer", "_save_checkpoint", "checkpoint"),
    (_TRAINER, "Trainer", "save_model", "checkpoint"),
    (_GENERATION, "GenerationMixin", "generate", "generation"),
)
"""A module, its class, a method, and the region that the method's calls become. A module that the
script has not loaded is not loaded for it: that takes a second, and no model of its generates."""


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
        _name_phases()

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Names phases again: making the Trainer may have loaded further modules of the library."""
        _name_phases()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Names phases again: `model_init` makes the model only now."""
        _name_phases()

    @guarded
    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Record what the Trainer logs: its own values and those of `compute_metrics`."""
        numbers = {name: value for name, value in (logs or {}).items() if _is_number(value)}
        if numbers and state.is_world_process_zero and not _recorded.holds(logs, state):
            log_metrics(numbers, state.global_step)


class DefaultTrainerCallback(TraceMLCallback):
    """The callback that every Trainer gets under `traceml run`, beside one that the script gives.
    It has a class of its own, because transformers warns of two callbacks of one class."""

    def __init__(self) -> None:
        """Starts no run: `traceml run` has started it."""
        _name_phases()


class _RecordedLogs:
    """Remembers the last recorded logs of the Trainer, so that of two callbacks only one records
    them."""

    def __init__(self) -> None:
        self._logs: object = None
        self._count = -1

    def holds(self, logs: object, state: Any) -> bool:
        """Whether these logs were recorded already; from now on they count as recorded. Each call
        of `log` also makes the Trainer's history longer, which tells two calls apart."""
        count = len(state.log_history)
        is_known = logs is self._logs and count == self._count
        self._logs, self._count = logs, count
        return is_known


_recorded = _RecordedLogs()


@guarded
def _name_phases() -> None:
    say_if_untested(_TESTED)
    for module, owner, method, region in _REGIONS:
        name_methods(getattr(sys.modules.get(module), owner, None), [method], region)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _let_report_to_find(callback: type) -> None:
    """Give the callback a name for `report_to`: the library has a table of names for it, and no
    other way to add one."""
    known = getattr(reporting.integration_utils, "INTEGRATION_TO_CALLBACK", None)
    if isinstance(known, dict):
        known.setdefault("traceml", callback)


_let_report_to_find(TraceMLCallback)
