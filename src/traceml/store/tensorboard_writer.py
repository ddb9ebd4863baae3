"""Logs a run to TensorBoard: an event file of its own, in a folder below the script's.

It is not in the script's own folder: there TensorBoard reads one file after the other, and would
read no more of the script's once ours is the newer one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traceml.store.tracker_writer import FINDING_PREFIX, LoggedEnd, LoggedFinding, LoggedRun

FOLDER = "traceml"
OWN_FOLDER = "tensorboard"
"""In the run folder, where the script has no `SummaryWriter`."""
FLUSH_S = 5


class TensorboardWriter:
    """Logs to an event file."""

    def __init__(self, run: LoggedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        above = run.script_run.get("folder")
        self._folder = f"{above}/{FOLDER}" if above else str(run.folder / OWN_FOLDER)
        self._file: Any = EventFileWriter(self._folder, flush_secs=FLUSH_S)

    @property
    def where(self) -> str:
        """The folder of the event file."""
        return self._folder

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        """Logs scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(found, step)

    def log_finding(self, finding: LoggedFinding) -> None:
        """Logs a text."""
        self._add_text(f"{FINDING_PREFIX}{finding.kind}", finding.text, finding.step)

    def finish(self, end: LoggedEnd) -> None:
        """Logs the summary's numbers and texts, and puts the files beside the event file."""
        self.log_values(end.numbers, end.step)
        for name, text in end.texts.items():
            self._add_text(name, text, end.step)
        indented = "\n".join(f"    {line}" for line in end.summary_text.splitlines())
        self._add_text("traceml/summary", indented, end.step)
        self.close()
        if "://" not in self._folder:
            for path in end.files:
                shutil.copyfile(path, Path(self._folder, path.name))

    def close(self) -> None:
        """Writes what is pending."""
        self._file.close()

    def _add_text(self, name: str, text: str, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.text.metadata import create_summary_metadata

        tensor = TensorProto(
            dtype="DT_STRING",
            string_val=[text.encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        metadata = create_summary_metadata(display_name=name, description="")
        self._add([Summary.Value(tag=name, tensor=tensor, metadata=metadata)], step)

    def _add(self, values: list[Any], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=values)
        self._file.add_event(Event(wall_time=time.time(), step=step, summary=summary))
