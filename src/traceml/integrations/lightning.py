"""A callback for Lightning: `Trainer(callbacks=[TraceMLCallback()])` traces the training, also
where it was not started by `traceml run`. In a run every trainer has one: see `zero_code.py`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import traceml
from traceml.integrations.library_support import (
    guarded,
    missing_library,
    name_methods,
    notice_calls,
    say_if_untested,
    try_to_log,
)
from traceml.model.library_versions import VersionRange
from traceml.trace.init import init
from traceml.trace.verbs import log_metrics, log_params, trace_time

_PACKAGES = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}
"""The two packages that Lightning comes in, with their names for pip. Their classes differ."""


def _packages_in_use() -> list[str]:
    """Those that the script has imported; where it has none yet, the one that is installed."""
    used = [package for package in _PACKAGES if package in sys.modules]
    if used:
        return used
    installed = [package for package in _PACKAGES if find_spec(package.partition(".")[0])]
    return installed[:1] or list(_PACKAGES)[:1]


def _classes(module: str, name: str) -> tuple[type, ...]:
    """A class of Lightning's, out of each package in use."""
    try:
        found = [import_module(f"{package}.{module}") for package in _packages_in_use()]
    except ModuleNotFoundError as error:
        raise missing_library(error, __name__, "lightning", "pytorch_lightning") from error
    return tuple(getattr(each, name) for each in found)


class TraceMLCallback(*_classes("callbacks", "Callback")):  # type: ignore[misc]  # known at run time
    """Begins a run, or joins the one that is there, and names the phases of Lightning's loops.

    `validation`, `sanity check`, `test`, `prediction`, `checkpoint` and `logging` become named
    regions of the run. What the loggers get is recorded as metrics of the run, and at the end of
    `fit`, also of one that fails, they get the run's main numbers (`traceml.summary()`).
    """

    def __init__(
        self,
        run_name: str | None = None,
        logs_dir: str | Path = "logs",
        overwrite: bool = False,
        trace_max_steps: int | None = None,
        log_summary: bool = True,
    ) -> None:
        """The arguments of `traceml.init`; `log_summary=False` leaves the loggers as they are.

        The run begins here, before Lightning starts further ranks: they inherit it.
        """
        self._options = run_name, logs_dir, overwrite, trace_max_steps
        self._log_summary = log_summary
        self._regions: dict[str, trace_time] = {}
        self._is_set_up = False
        init(*self._options)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """In each rank, before anything runs."""
        init(*self._options)  # where another process of this trainer's unpickled us
        self._set_up(trainer)
        self._is_set_up = True

    @guarded
    def _set_up(self, trainer: Any) -> None:
        package = type(trainer).__module__.partition(".trainer")[0]
        if package in _PACKAGES:
            say_if_untested(VersionRange(_PACKAGES[package], "2.2", "3"))
        name_methods(type(trainer), ["save_checkpoint"], "checkpoint")
        for logger in trainer.loggers:
            name_methods(type(logger), ["log_metrics", "save"], "logging")
        # Not by a logger of our own: scripts ask every logger for things that only theirs have.
        if trainer.loggers and trainer.is_global_zero:
            _recorded.begin(trainer.loggers[0])

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """In each rank, after everything has run."""
        self._is_set_up = False
        _recorded.end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Gives the run's main numbers to the loggers."""
        self._give_summary(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends what is going on: after an exception, or Ctrl-C, Lightning calls no other hook of
        ours."""
        for name in tuple(self._regions):
            self._exit(name)
        if not self._is_set_up:  # nothing has begun: loggers are not open, and another may record
            return
        self._is_set_up = False
        if getattr(trainer.state.fn, "value", None) == "fit":
            self._give_summary(trainer)
        _recorded.end()

    @guarded
    def _give_summary(self, trainer: Any) -> None:
        """Give the run's main numbers to the script's loggers, which are still open."""
        if not (self._log_summary and trainer.loggers and trainer.is_global_zero):
            return
        values = traceml.summary()
        _recorded.end()  # what we give them is no metric of the script's
        for logger in trainer.loggers if values else ():
            log = partial(logger.log_metrics, values, step=_logging_step(trainer))
            try_to_log(type(logger).__name__, log)

    # The phases of the loops

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """The first batches of validation, before training."""
        self._enter("sanity check")

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """They went well."""
        self._exit("sanity check")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins; that of the sanity check has its own name."""
        if not trainer.sanity_checking:
            self._enter("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Before the checkpoint callback, which Lightning calls last, may save."""
        if not trainer.sanity_checking:
            self._exit("validation")
            self._log_without_loggers(trainer)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """`trainer.test` begins."""
        self._enter("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """`trainer.test` ends."""
        self._exit("test")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """`trainer.predict` begins."""
        self._enter("prediction")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """`trainer.predict` ends."""
        self._exit("prediction")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """An epoch's means are there."""
        self._log_without_loggers(trainer)

    def _enter(self, name: str) -> None:
        self._regions[name] = trace_time(name)
        self._regions[name].__enter__()

    def _exit(self, name: str) -> None:
        region = self._regions.pop(name, None)
        if region is not None:
            region.__exit__(None, None, None)

    @guarded
    def _log_without_loggers(self, trainer: Any) -> None:
        """Record the values so far where no logger is given any."""
        if not trainer.loggers and trainer.is_global_zero:
            log_metrics(trainer.callback_metrics, _logging_step(trainer))


class DefaultLightningCallback(TraceMLCallback):
    """The one that every trainer of a traced run has, unless its script gives one."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """In each rank, before anything runs."""
        ours = [each for each in trainer.callbacks if isinstance(each, TraceMLCallback)]
        if len(ours) == 1:
            super().setup(trainer, pl_module, stage)
        else:  # a new list: Lightning iterates over the present one
            trainer.callbacks = [each for each in trainer.callbacks if each is not self]


def _logging_step(trainer: Any) -> int:
    """The step at which Lightning would log now: batches, where several optimizers step in each."""
    epoch_loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    step: int = getattr(epoch_loop, "_batches_that_stepped", trainer.global_step)
    return step


class _RecordedLogger:
    """The logger whose values are recorded as metrics and parameters of the run: the first one of
    the trainer that was set up last. All loggers of a trainer get the same."""

    def __init__(self) -> None:
        self._logger: Any = None

    def begin(self, logger: Any) -> None:
        """Records what a logger gets from now on."""
        self._logger = logger
        notice_calls(type(logger), "log_metrics", self._notice_metrics)
        notice_calls(type(logger), "log_hyperparams", self._notice_params)

    def end(self) -> None:
        """Records nothing more."""
        self._logger = None

    def _notice_metrics(
        self, logger: Any, metrics: Any = None, step: int | None = None, *_: Any, **__: Any
    ) -> None:
        """Records values at a step of Lightning's count; of other loggers of the class none."""
        if logger is self._logger and isinstance(metrics, Mapping):
            log_metrics(metrics, step)

    def _notice_params(self, logger: Any, params: Any = None, *_: Any, **__: Any) -> None:
        """Records the module's hyperparameters."""
        found = vars(params) if isinstance(params, Namespace) else params
        if logger is self._logger and isinstance(found, Mapping):
            log_params(found)


_recorded = _RecordedLogger()
