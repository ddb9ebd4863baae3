"""Reads runs from TensorBoard's event folders: scalars, and what `add_hparams` wrote."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traceml.model.errors import RunNotFound, UsageError
from traceml.model.printable import printable
from traceml.model.run_values import RunValue
from traceml.model.tracked_run import MetricPoint, TrackedRun, moment_of

SCHEME = "tensorboard"
EVENTS = "events.out.tfevents."
MAX_FOLDERS = 10_000
_HPARAMS_FOLDER = re.compile(r"\d{9,}(\.\d+)?")
"""`add_hparams` of torch writes into a folder that is named after the time."""
_HPARAMS_PLUGIN = "hparams"
_HPARAMS_START, _HPARAMS_END = (
    "_hparams_/session_start_info",
    "_hparams_/session_end_info",
)


class TensorboardRuns:
    """The runs under a folder; each folder with event files is one."""

    def __init__(self, word: str) -> None:
        """Takes `tensorboard:DIR`; raises UsageError where TensorBoard is not installed, and
        RunNotFound where there is no such folder."""
        self._folder = Path(word.removeprefix(f"{SCHEME}:"))
        if not self._folder.is_dir():
            raise RunNotFound(
                f"{printable(str(self._folder))} is no folder; expected one with TensorBoard's "
                f"event files ({EVENTS}…); check the path after {SCHEME}:"
            )
        _import_accumulator()

    @property
    def address(self) -> str:
        """Returns the folder as users write it."""
        return f"{SCHEME}:{self._folder}"

    def list_runs(self) -> Iterator[TrackedRun]:
        """Yields every run under the folder."""
        for folder in self._run_folders():
            yield self._read(folder)

    def find_runs(self) -> list[TrackedRun]:
        """Returns every run under the folder; raises RunNotFound where there is none."""
        found = list(self.list_runs())
        if not found:
            raise RunNotFound(
                f"there is no TensorBoard run under {printable(str(self._folder))}: no file there "
                f"is called {EVENTS}…; pass the folder that SummaryWriter(log_dir=…) wrote to"
            )
        return found

    def fetch_files(self, run: TrackedRun, folder: Path) -> bool:
        """Returns that there are none: nothing is sent to TensorBoard's folders."""
        return False

    def _run_folders(self) -> list[Path]:
        found = []
        for number, (place, folders, files) in enumerate(os.walk(self._folder)):
            folders.sort()
            if any(name.startswith(EVENTS) for name in files):
                found.append(Path(place))
            if number >= MAX_FOLDERS:
                raise UsageError(
                    f"{printable(str(self._folder))} has more than {MAX_FOLDERS:,} folders; name "
                    "one further down"
                )
        # What `add_hparams` wrote belongs to the run in the folder above.
        runs = set(found)
        return [path for path in found if not (_is_hparams(path) and path.parent in runs)]

    def _read(self, folder: Path) -> TrackedRun:
        params: dict[str, RunValue] = {}
        histories: dict[str, tuple[MetricPoint, ...]] = {}
        status: str | None = None
        parts = [path for path in sorted(folder.iterdir()) if _is_hparams(path) and path.is_dir()]
        for part in (*parts, folder):  # what the folder itself has counts more
            events = _load(part)
            histories.update(_histories(events))
            given, ended = _hparams(events)
            params.update(given)
            status = ended or status
        times = [
            point.unix_s
            for points in histories.values()
            for point in (points[0], points[-1])
            if point.unix_s is not None
        ]
        inside = folder.relative_to(self._folder).as_posix()
        return TrackedRun(
            source=SCHEME,
            run_id=str(folder),
            name=self._folder.resolve().name if inside == "." else inside,
            status=status,
            started_unix_s=min(times, default=None),
            ended_unix_s=max(times, default=None),
            params=params,
            last_values={name: points[-1].value for name, points in histories.items()},
            histories=histories,
        )


def _is_hparams(path: Path) -> bool:
    return _HPARAMS_FOLDER.fullmatch(path.name) is not None


def _import_accumulator() -> Any:
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError as error:
        raise UsageError(
            f"TensorBoard is not installed ({error}), which reads its event files; install it "
            "with: pip install 'traceml-insight[tensorboard]'"
        ) from None
    return event_accumulator


def _load(folder: Path) -> Any:
    """Returns the events of one folder; those behind a damaged record are left out."""
    accumulator = _import_accumulator()
    events = accumulator.EventAccumulator(
        str(folder),
        # 0 keeps every value; pictures and graphs are not read.
        size_guidance={
            accumulator.SCALARS: 0,
            accumulator.TENSORS: 0,
            accumulator.IMAGES: 1,
            accumulator.AUDIO: 1,
            accumulator.HISTOGRAMS: 1,
            accumulator.COMPRESSED_HISTOGRAMS: 1,
        },
        purge_orphaned_data=False,
    )
    events.Reload()
    return events


def _histories(events: Any) -> dict[str, tuple[MetricPoint, ...]]:
    tags = events.Tags()
    found = {
        name: tuple(
            MetricPoint(float(each.value), int(each.step), moment_of(float(each.wall_time)))
            for each in events.Scalars(name)
        )
        for name in tags["scalars"]
    }
    for name in tags["tensors"]:
        if events.SummaryMetadata(name).plugin_data.plugin_name == "scalars":
            found[name] = tuple(_tensor_points(events.Tensors(name)))
    return {name: points for name, points in found.items() if points}


def _tensor_points(tensors: Any) -> Iterator[MetricPoint]:
    """Yields the scalars that TensorFlow 2 writes as tensors."""
    from tensorboard.util.tensor_util import make_ndarray

    for each in tensors:
        values = make_ndarray(each.tensor_proto)
        if values.size == 1 and values.dtype.kind in "biuf":
            moment = moment_of(float(each.wall_time))
            yield MetricPoint(float(values.item()), int(each.step), moment)


def _hparams(events: Any) -> tuple[dict[str, RunValue], str | None]:
    """Returns the hyperparameters, and how the session ended; `None` where that is not said."""
    from google.protobuf.message import DecodeError  # comes with TensorBoard
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    contents = events.summary_metadata
    params: dict[str, RunValue] = {}
    status: str | None = None
    for tag in (_HPARAMS_START, _HPARAMS_END):
        metadata = contents.get(tag)
        if metadata is None or metadata.plugin_data.plugin_name != _HPARAMS_PLUGIN:
            continue
        try:
            data = HParamsPluginData.FromString(metadata.plugin_data.content)
        except DecodeError:
            continue  # of another version
        for name, value in data.session_start_info.hparams.items():
            if (plain := _param(value)) is not None:
                params[name] = plain
        if data.HasField("session_end_info"):
            status = {1: "finished", 2: "failed", 3: "live"}.get(data.session_end_info.status)
    return params, status


def _param(value: Any) -> RunValue | None:
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = float(value.number_value)
        is_whole = math.isfinite(number) and number.is_integer() and abs(number) < 1 << 53
        return int(number) if is_whole else number
    if kind == "bool_value":
        return bool(value.bool_value)
    return str(value.string_value) if kind == "string_value" else None
