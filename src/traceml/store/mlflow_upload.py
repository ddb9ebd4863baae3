"""Sends a run to an MLflow tracking server, once; a push that was interrupted is continued.

What was sent is known from the server: the run's tag `traceml.run_id`, how many values of its
metrics have arrived (a tag of the same request as the values), and which files are there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from traceml.model.errors import UsageError
from traceml.model.printable import printable, shorten
from traceml.store.mlflow_names import (
    MAX_TAG_CHARS,
    PARAM_VALUE_CHARS,
    is_shortened,
    sent_name,
    shortened,
)
from traceml.store.mlflow_runs import COMPLETE, FOLDER, RUN_ID_TAG, STATE_TAG, MlflowRuns
from traceml.store.mlflow_server import NotAtServer, RefusedByServer

MAX_METRICS_PER_REQUEST = 1000
MAX_PARAMS_PER_REQUEST = 100
MAX_TAGS_PER_REQUEST = 100
MAX_REQUEST_BYTES = 500_000
"""Half of what a server takes, which is counted in escaped characters."""
SENT_VALUES_TAG = "traceml.sent_values"
INCOMPLETE = "incomplete"
_MAX_MLFLOW_STEP = (1 << 63) - 1

Progress = Callable[[str], None]
"""Is told what is being sent."""


class _Digest(Protocol):
    """A hash that values are added to."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class SentValue:
    """One value of a metric."""

    name: str
    value: float
    step: int
    unix_ms: int


@dataclass(frozen=True, slots=True)
class RunToSend:
    """All of a run that is sent."""

    traceml_id: str
    name: str
    status: str
    """`FINISHED`, `FAILED` or `RUNNING`, as MLflow says it."""
    started_unix_ms: int
    ended_unix_ms: int | None
    params: Mapping[str, str]
    values: Sequence[SentValue]
    """Of all metrics, in a fixed order."""
    tags: Mapping[str, str]
    files: Mapping[str, Path]
    """By their paths in the run folder."""
    digest: str
    """Changes when anything of it does."""


@dataclass(slots=True)
class Sent:
    """What a push did."""

    run_id: str
    link: str
    was_there: bool = False
    """Whether all of it had been sent before."""
    is_new: bool = True
    params: int = 0
    values: int = 0
    files: int = 0
    file_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    """What was sent in another form, and where it is whole."""
    problems: list[str] = field(default_factory=list)
    """What could not be sent."""


def send_run(store: MlflowRuns, experiment: str | None, run: RunToSend, progress: Progress) -> Sent:
    """Sends what the server does not have yet of a run.

    Raises StoreUnreachable where the server stops answering; the next push continues there.
    """
    experiment_id = _experiment_id(store, experiment)
    there = store.find_sent(experiment_id, run.traceml_id)
    done = f"{COMPLETE} {run.digest}"
    if there is not None and there.data.tags.get(STATE_TAG) == done:
        run_id = there.info.run_id
        return Sent(run_id, store.server.link(experiment_id, run_id), was_there=True, is_new=False)
    is_new = there is None
    if there is None:
        there = _create(store, experiment_id, run.traceml_id, run.name, run.started_unix_ms)
    sending = _Sending(store, there, run, progress)
    sending.sent.is_new = is_new
    sending.sent.link = store.server.link(experiment_id, there.info.run_id)
    sending.send_params()
    sending.send_values()
    sending.send_files()
    sending.finish(INCOMPLETE if sending.sent.problems else done)
    return sending.sent


def _experiment_id(store: MlflowRuns, name: str | None) -> str:
    """Returns the id of an experiment, which is made where it is missing."""
    name = name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if name is None:
        return os.environ.get("MLFLOW_EXPERIMENT_ID", "0")
    client, shown = store.server.client, printable(name)
    with store.server.said_plainly(f"looking for the experiment {shown}"):
        found = client.get_experiment_by_name(name)
    if found is None:
        try:
            with store.server.said_plainly(f"making the experiment {shown}"):
                return str(client.create_experiment(name))
        except RefusedByServer:  # somebody else has made it a moment ago, or it is no name
            with store.server.said_plainly(f"looking for the experiment {shown}"):
                found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise UsageError(
            f"the experiment {shown} was deleted at {store.server.shown}; restore it there "
            f"(mlflow experiments restore -x {found.experiment_id}), or choose another one with "
            "--experiment"
        )
    return str(found.experiment_id)


def begin_run(store: MlflowRuns, traceml_id: str, name: str, started_unix_ms: int) -> Any:
    """Returns the server's record of a run that goes on, which is made where it is missing;
    `send_run` completes it."""
    experiment_id = _experiment_id(store, None)
    there = store.find_sent(experiment_id, traceml_id)
    return there or _create(store, experiment_id, traceml_id, name, started_unix_ms)


def _create(
    store: MlflowRuns, experiment_id: str, traceml_id: str, name: str, started_unix_ms: int
) -> Any:
    try:
        with store.server.said_plainly(f"making the run {printable(name)}"):
            return store.server.client.create_run(
                experiment_id,
                start_time=started_unix_ms,
                tags={RUN_ID_TAG: traceml_id, STATE_TAG: INCOMPLETE},
                run_name=name,
            )
    except NotAtServer:
        raise UsageError(
            f"there is no experiment with the id {printable(experiment_id)} at "
            f"{store.server.shown}; choose one with --experiment NAME"
        ) from None


class _Sending:
    """One push."""

    def __init__(self, store: MlflowRuns, there: Any, run: RunToSend, progress: Progress) -> None:
        self._server = store.server
        self._client = store.server.client
        self._there = there
        self._id: str = there.info.run_id
        self._run = run
        self._progress = progress
        self.sent = Sent(self._id, "")

    # Parameters

    def send_params(self) -> None:
        """Sends the parameters that are not there; those that are cannot change."""
        have = self._there.data.params
        for limit in PARAM_VALUE_CHARS:
            missing = self._missing_params(have, limit)
            try:
                self._send_params(missing)
                break
            except RefusedByServer as error:
                if limit == PARAM_VALUE_CHARS[-1] or not self._has_longer(PARAM_VALUE_CHARS[-1]):
                    self._send_one_by_one(missing, error)
                    break
        self.sent.params = len(missing) - len(self.sent.problems)
        self._note_shortened(limit)

    def _missing_params(self, have: Mapping[str, str], limit: int) -> dict[str, str]:
        missing: dict[str, str] = {}
        for name, value in self._run.params.items():
            key, text = sent_name(name), shortened(value, limit)
            if key not in have:
                missing[key] = text
            elif have[key] not in (text, value, *(shortened(value, n) for n in PARAM_VALUE_CHARS)):
                note = (
                    f"the parameter {_quoted(name)} is {_quoted(have[key])} there and "
                    f"{_quoted(value)} here: MLflow lets no parameter change; the new value is in "
                    f"{FOLDER}/final_summary.json"
                )
                if note not in self.sent.notes:
                    self.sent.notes.append(note)
        return missing

    def _has_longer(self, limit: int) -> bool:
        return any(len(value) > limit for value in self._run.params.values())

    def _send_params(self, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        for part in _parts(params.items(), MAX_PARAMS_PER_REQUEST, _pair_bytes):
            self._progress(f"{len(params):,} parameters")
            with self._server.said_plainly("sending parameters"):
                self._client.log_batch(self._id, params=[Param(*each) for each in part])

    def _send_one_by_one(self, params: Mapping[str, str], first: Exception) -> None:
        """Finds the parameters that the server refuses; the others arrive."""
        for name, value in params.items():
            try:
                self._send_params({name: value})
            except RefusedByServer as error:
                self.sent.problems.append(f"the parameter {_quoted(name)}: {error or first}")

    def _note_shortened(self, limit: int) -> None:
        names = [*self._run.params, *dict.fromkeys(value.name for value in self._run.values)]
        cut = [name for name, value in self._run.params.items() if len(value) > limit]
        long = [name for name in names if is_shortened(name)]
        for found, words in (
            (cut, f"are longer than the {limit:,} characters that the server takes"),
            (long, "have names too long for MLflow, which end in a hash there"),
        ):
            if found:
                self.sent.notes.append(
                    f"{len(found):,} of the parameters and metrics {words} "
                    f"({', '.join(map(_quoted, found[:3]))}{', …' if len(found) > 3 else ''}); "
                    f"they are whole in {FOLDER}/final_summary.json"
                )

    # Metrics

    def send_values(self) -> None:
        """Sends the values of metrics behind those that have arrived."""
        from mlflow.entities import Metric, RunTag

        values = self._run.values
        arrived, digest = self._arrived()
        keys = {name: sent_name(name) for name in {value.name for value in values}}
        earlier = len(self.sent.problems)
        while part := values[arrived : arrived + MAX_METRICS_PER_REQUEST - 1]:
            self._progress(f"metrics: {arrived:,} of {len(values):,} values")
            arrived += len(part)
            _add_to_digest(digest, part)
            metrics = [
                Metric(keys[each.name], each.value, each.unix_ms, each.step) for each in part
            ]
            # Behind a value that is refused no more are marked: the next push says it again.
            is_whole = len(self.sent.problems) == earlier
            mark = RunTag(SENT_VALUES_TAG, _mark(arrived, digest))
            self._send_metrics(metrics, [mark] if is_whole else [])
            self.sent.values += len(part)
        self.sent.values -= len(self.sent.problems) - earlier

    def _send_metrics(self, metrics: Sequence[Any], tags: Sequence[Any]) -> None:
        """Sends values, and in the same request how many have arrived then; where some are refused,
        all others."""
        try:
            with self._server.said_plainly("sending metrics"):
                self._client.log_batch(self._id, metrics=metrics, tags=tags)
        except RefusedByServer as error:
            if len(metrics) == 1:
                name = _quoted(metrics[0].key)
                self.sent.problems.append(f"a value of the metric {name}: {error}")
                return
            middle = len(metrics) // 2
            self._send_metrics(metrics[:middle], ())
            self._send_metrics(metrics[middle:], ())

    def _arrived(self) -> tuple[int, _Digest]:
        """Returns how many of the values are at the server, and their digest; 0 where those that
        are there are others."""
        said = self._there.data.tags.get(SENT_VALUES_TAG, "")
        count = said.partition(" ")[0]
        number = int(count) if count.isdecimal() and len(count) < 12 else 0
        known = self._run.values[:number]
        digest = hashlib.sha256()
        _add_to_digest(digest, known)
        return (number, digest) if _mark(len(known), digest) == said else (0, hashlib.sha256())

    # Files

    def send_files(self) -> None:
        """Sends the files that are not there, or are there with another size."""
        there = dict(self._files_there(FOLDER)) if not self._is_fresh() else {}
        for place, path in self._run.files.items():
            try:
                size = path.stat().st_size
            except OSError as error:
                self.sent.problems.append(f"the file {_quoted(place)}: {error.strerror}")
                continue
            if place.startswith("artifacts/") and there.get(f"{FOLDER}/{place}") == size:
                continue  # a logged file never changes
            self._send_file(place, path, size)

    def _is_fresh(self) -> bool:
        return not self._there.data.tags.get(SENT_VALUES_TAG) and not self._there.data.params

    def _send_file(self, place: str, path: Path, size: int) -> None:
        folder = os.path.dirname(place)  # noqa: PTH120 - a path at the server
        self._progress(place)
        try:
            with self._server.said_plainly(f"sending the file {_quoted(place)}"):
                self._client.log_artifact(
                    self._id, str(path), f"{FOLDER}/{folder}" if folder else FOLDER
                )
        except (RefusedByServer, NotAtServer) as error:
            self.sent.problems.append(f"the file {_quoted(place)}: {error}")
            return
        self.sent.files += 1
        self.sent.file_bytes += size

    def _files_there(self, path: str) -> Iterator[tuple[str, int | None]]:
        try:
            with self._server.said_plainly("listing what is there"):
                found = self._client.list_artifacts(self._id, path)
        except NotAtServer:
            return
        for each in found:
            if each.is_dir:
                yield from self._files_there(each.path)
            else:
                yield each.path, each.file_size

    # The end

    def finish(self, state: str) -> None:
        """Sends tags, and says that all has arrived; this comes last."""
        tags = {name: shortened(value, MAX_TAG_CHARS) for name, value in self._run.tags.items()}
        cut = [name for name, value in tags.items() if value != self._run.tags[name]]
        if cut:
            self.sent.notes.append(
                f"{', '.join(cut)}: cut to the {MAX_TAG_CHARS:,} characters that MLflow takes"
            )
        self._set_tags(tags)
        run = self._run
        with self._server.said_plainly("ending the run"):
            if run.status == "RUNNING":
                self._client.update_run(self._id, status=run.status)
            else:
                self._client.set_terminated(self._id, run.status, run.ended_unix_ms)
        self._set_tags({STATE_TAG: state})

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        for part in _parts(tags.items(), MAX_TAGS_PER_REQUEST, _pair_bytes):
            with self._server.said_plainly("sending tags"):
                self._client.log_batch(self._id, tags=[RunTag(*each) for each in part])


def _add_to_digest(digest: _Digest, values: Sequence[SentValue]) -> None:
    for each in values:
        text = f"{each.name}\0{each.value!r}\0{each.step}\0{each.unix_ms}\n"
        digest.update(text.encode(errors="replace"))


def _mark(count: int, digest: _Digest) -> str:
    """Returns the text that says which values have arrived."""
    return f"{count} {digest.hexdigest()[:16]}"


def bounded_step(step: int | None) -> int:
    """Returns a step that MLflow takes; 0 where the script gave none."""
    return 0 if step is None else max(-_MAX_MLFLOW_STEP, min(step, _MAX_MLFLOW_STEP))


def _parts(items: Any, count: int, size: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Yields the items in lists of a limited number and size."""
    part: list[Any] = []
    total = 0
    for item in items:
        if part and (len(part) == count or total + size(item) > MAX_REQUEST_BYTES):
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part


def _pair_bytes(pair: tuple[str, str]) -> int:
    """Returns about how many bytes a name and a value take in a request: six for a character that
    JSON escapes."""
    return sum(len(text) if text.isascii() else 6 * len(text) for text in pair) + 30


def _quoted(text: str) -> str:
    return f"'{shorten(printable(text), 60)}'"
