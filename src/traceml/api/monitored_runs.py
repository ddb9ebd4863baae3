"""The runs that a monitoring system is told of: those in progress, and those that just ended."""

from __future__ import annotations

import time
from pathlib import Path

from traceml.api.run_files import RunFiles
from traceml.model.errors import TraceMLError
from traceml.store import folder as folders
from traceml.store.line_files import LIVE_STATE
from traceml.store.metric_follower import LiveMetrics
from traceml.store.regular_files import stat_regular
from traceml.summaries.exported_values import ExportedValue, exported_values
from traceml.summaries.live_record import with_metrics

RECENT_S = 900.0
"""A run that ended is exported for so long, so that its last state is not missed."""
MAX_RUNS = 50
"""The latest ones; a server scrapes every few seconds."""


class MonitoredRuns:
    """The runs of a logs folder, read again only where they have changed; for one thread at a
    time."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._files: dict[Path, RunFiles] = {}
        self._logged: dict[Path, LiveMetrics] = {}
        """Of the runs in progress."""

    def values(self) -> list[ExportedValue]:
        """Returns what is exported of all of them."""
        chosen = self._candidates(time.time())
        self._files = {folder: files for folder, files in self._files.items() if folder in chosen}
        self._logged = {folder: each for folder, each in self._logged.items() if folder in chosen}
        return [value for folder in chosen for value in self._values_of(folder)]

    def _candidates(self, now_s: float) -> list[Path]:
        """Returns the folders in which a state or a summary was written lately, the latest first.

        A run that hangs goes on writing its state.
        """
        written: dict[Path, float] = {}
        try:
            for folder in self._logs.iterdir():
                stats = (stat_regular(folder / name) for name in (LIVE_STATE, folders.SUMMARY))
                written_s = max((stat.st_mtime for stat in stats if stat is not None), default=0.0)
                if now_s - written_s < RECENT_S and folders.is_run_name(folder.name):
                    written[folder] = written_s
        except OSError:  # the folder is not there yet, or not any more
            return []
        return sorted(written, key=lambda folder: -written[folder])[:MAX_RUNS]

    def _values_of(self, folder: Path) -> list[ExportedValue]:
        try:
            files = self._files.get(folder)
            if files is None:
                files = self._files[folder] = RunFiles(folder)
            else:
                files.refresh()
        except (TraceMLError, OSError):  # damaged, or deleted meanwhile: the others are exported
            self._files.pop(folder, None)
            return []
        summary = files.summary
        if summary is None:
            return []
        if files.is_recent:  # of what the script logs it has the losses alone
            logged = self._logged.setdefault(folder, LiveMetrics(folder))
            summary = with_metrics(summary, logged.refresh())
        else:
            self._logged.pop(folder, None)
        return exported_values(summary, folder.name, files.state)
