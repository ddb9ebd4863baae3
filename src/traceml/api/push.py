"""Sends runs to the team's store (`traceml push`): what of a run is sent, and in which form."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traceml.api.query_runs import RunReader
from traceml.figures.run_columns import listed_params
from traceml.model.environment import ENDING
from traceml.model.errors import RunNotFound, UsageError
from traceml.model.quantities import count, memory
from traceml.model.run_values import RunValue
from traceml.store import folder as folders
from traceml.store.artifact_store import safe_relative
from traceml.store.logged import metric_values
from traceml.store.mlflow_names import MAX_TAG_CHARS
from traceml.store.mlflow_runs import METRIC_PREFIX, ROW_TAG, RUN_ID_TAG, MlflowRuns
from traceml.store.mlflow_upload import (
    Progress,
    RunToSend,
    Sent,
    SentValue,
    bounded_step,
    send_run,
)
from traceml.store.record_file import RankFiles
from traceml.store.regular_files import open_regular, stat_regular
from traceml.store.tags import read_tags
from traceml.summaries.read import read_summary
from traceml.summaries.record import Summary

MAX_ROW_TAGS = 20
"""Of 5,000 characters each; the extremes of thousands of metrics are in the summary alone."""
MAX_OUTPUT_BYTES = 64 << 20
_STATES = {"finished": "FINISHED", "failed": "FAILED", "lost": "KILLED", "live": "RUNNING"}
_SMALL_FILES = (
    folders.MANIFEST,
    ENDING,
    folders.SUMMARY,
    folders.TEXT,
    folders.TAGS,
    folders.OUTPUT,
    "report.html",
    "lineage.json",
    "artifacts.json",
)
_PATTERNS = ("rank-*.messages", "logged-samples-*.jsonl")
_SHOWN_FACTS = ("verdict", "diagnosis", "severity", "failure", "status", "tags")
"""Facts that are tags of their own at the server, for its own pages and searches."""


def push_run(
    store: MlflowRuns,
    path: Path,
    experiment: str | None = None,
    all_versions: bool = False,
    progress: Progress = lambda what: None,
) -> Sent:
    """Sends what the server does not have yet of the run whose summary is `path`; returns what was
    sent, and what was not.

    Raises UsageError; after a broken connection the next push continues.
    """
    if path.name != folders.SUMMARY:
        raise UsageError(
            f"{path} is a file; expected a run folder or a run's name: a run is sent with its "
            "parameters, metrics and files"
        )
    with _one_at_a_time(path):
        notes: list[str] = []
        sent = send_run(store, experiment, _run_to_send(path, all_versions, notes), progress)
        sent.notes = [*notes, *sent.notes]
        return sent


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Waits for another push of the same run, which would make a second one at the server."""
    try:
        descriptor = open_regular(path, follow_links=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); check its rights") from error
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def traceml_id(path: Path) -> str:
    """Returns what tells a run from all others, wherever its folder is copied or renamed to."""
    try:
        manifest = folders.read_manifest(path.parent)
        text = json.dumps(
            [
                manifest.run_name,
                manifest.started_unix_s,
                manifest.hostname,
                manifest.user,
                manifest.command,
            ]
        ).encode()
    except RunNotFound:  # a summary alone
        text = path.read_bytes()
    return hashlib.sha256(text).hexdigest()[:32]


def _run_to_send(path: Path, all_versions: bool, notes: list[str]) -> RunToSend:
    folder = path.parent
    summary = read_summary(path, follow_links=True)
    known = RunReader()(folder).values
    facts = {
        key.removeprefix("facts."): value
        for key, value in known.items()
        if key.startswith("facts.")
    }
    started_s = float(facts.get("started", 0.0))  # type: ignore[arg-type]
    ending = folders.read_ending(folder)
    ended_s = started_s + (summary.duration_s or 0.0) if ending is None else ending.unix_s
    params = {name: _text(value) for name, value in listed_params(summary)}
    values = list(_values(folder, summary, ended_s, notes))
    values += _fact_values(facts, int(ended_s * 1000))
    tags = {**_tags(facts), **_row_tags(facts, known, notes), RUN_ID_TAG: traceml_id(path)}
    if (note := read_tags(folder).note) is not None:  # one that was written there stays
        tags["mlflow.note.content"] = note
    files = dict(_files(folder, summary, all_versions, notes))
    return RunToSend(
        traceml_id=tags[RUN_ID_TAG],
        name=folder.name,
        status=_STATES[str(facts["status"])],
        started_unix_ms=int(started_s * 1000),
        ended_unix_ms=int(ended_s * 1000),
        params=params,
        values=values,
        tags=tags,
        files=files,
        digest=_digest(params, values, tags, files),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _values(
    folder: Path, summary: Summary, ended_s: float, notes: list[str]
) -> Iterator[SentValue]:
    """Yields the logged values in order of time; of a run without records the last ones."""
    found = sorted(
        (
            (unix_ns, name, value, step)
            for files in RankFiles.all_in(folder)
            for unix_ns, name, value, step in metric_values(files.read_messages())
        ),
        key=lambda each: each[0],
    )
    kept: dict[str, int] = {}
    for unix_ns, name, value, step in found:
        kept[name] = kept.get(name, 0) + 1
        at_ms = unix_ns // 1_000_000 or int(ended_s * 1000)
        yield SentValue(name, value, bounded_step(step), at_ms)
    missing = sum(max(0, each.count - kept.get(name, 0)) for name, each in summary.metrics.items())
    for name, each in summary.metrics.items():
        if name not in kept and each.last is not None:
            missing -= 1
            yield SentValue(name, each.last, bounded_step(each.last_step), int(ended_s * 1000))
    if missing > 0:
        notes.append(
            f"{count(missing, 'logged value')} cannot be sent one by one: of very long runs, and "
            "of runs without records, a part of the values is kept; their minimum, maximum and "
            "mean are in traceml/final_summary.json"
        )


def _fact_values(facts: Mapping[str, RunValue], unix_ms: int) -> list[SentValue]:
    """Returns the facts that are numbers, for the server's own pages."""
    return [
        SentValue(f"{METRIC_PREFIX}{name}", float(value), 0, unix_ms)
        for name, value in facts.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "started"
    ]


def _tags(facts: Mapping[str, RunValue]) -> dict[str, str]:
    # What has been removed here is sent, too: an empty tag.
    tags = {f"traceml.{name}": _joined(facts.get(name, "")) for name in _SHOWN_FACTS}
    for fact, tag in (
        ("traceml_version", "traceml.version"),
        ("user", "mlflow.user"),
        ("script", "mlflow.source.name"),
        ("commit", "mlflow.source.git.commit"),
    ):
        if fact in facts:
            tags[tag] = _joined(facts[fact])
    return tags


def _joined(value: RunValue) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _row_tags(
    facts: Mapping[str, RunValue], known: Mapping[str, RunValue], notes: list[str]
) -> dict[str, str]:
    """Returns what lists of runs show and MLflow cannot hold, as pieces of one JSON text."""
    statistics = {
        key: value
        for key, value in known.items()
        if key.partition(".")[0] not in ("facts", "params", "metrics")
    }
    # The name is the one at the server, which people may change there.
    facts = {name: value for name, value in facts.items() if name != "name"}
    text = json.dumps({"facts": facts, "statistics": statistics})
    if len(text) > MAX_ROW_TAGS * MAX_TAG_CHARS:
        notes.append(
            f"the minimum, maximum and mean of {len(statistics):,} columns of metrics are too many "
            "for lists of runs; they are in traceml/final_summary.json"
        )
        text = json.dumps({"facts": facts})
    places = range(0, len(text), MAX_TAG_CHARS)
    pieces = {
        f"{ROW_TAG}.{number}": text[place : place + MAX_TAG_CHARS]
        for number, place in enumerate(places)
    }
    return {ROW_TAG: str(len(pieces)), **pieces}


def _files(
    folder: Path, summary: Summary, all_versions: bool, notes: list[str]
) -> Iterator[tuple[str, Path]]:
    """Yields the files that are sent, by their paths in the run folder; never a link."""
    named = [*(folder / name for name in _SMALL_FILES)]
    for path in [*named, *(found for each in _PATTERNS for found in sorted(folder.glob(each)))]:
        known = stat_regular(path)
        if known is None:
            continue
        if path.name == folders.OUTPUT and known.st_size > MAX_OUTPUT_BYTES:
            notes.append(f"{path.name} was not sent: it has {memory(known.st_size)}")
            continue
        yield path.name, path
    yield from _artifacts(folder, summary, all_versions, notes)


def _artifacts(
    folder: Path, summary: Summary, all_versions: bool, notes: list[str]
) -> Iterator[tuple[str, Path]]:
    earlier = 0
    for name, artifact in summary.artifacts.items():
        stored = [artifact.stored]
        older = [each.stored for each in artifact.earlier if each.stored != artifact.stored]
        if all_versions:
            stored += older
        else:
            earlier += sum(each is not None for each in older)
        if artifact.stored is None and artifact.kind != "reference":
            notes.append(
                f"the artifact {name!r} cannot be sent: its content was not kept"
                f"{f' ({artifact.note})' if artifact.note else ''}"
            )
        for place in stored:
            inside = None if place is None else safe_relative(place)
            if inside is None:
                continue
            # A link to a folder elsewhere would send what the run never logged.
            is_inside = (folder / inside).resolve().is_relative_to(folder.resolve())
            found = list(_regular_files(folder / inside)) if is_inside else []
            if not found:
                notes.append(f"the artifact {name!r} cannot be sent: {folder / inside} is gone")
            yield from ((path.relative_to(folder).as_posix(), path) for path in found)
    if earlier:
        notes.append(
            f"{count(earlier, 'earlier version')} of artifacts were not sent; --all-versions sends "
            "them"
        )


def _regular_files(path: Path) -> Iterator[Path]:
    if stat_regular(path) is not None:
        yield path
        return
    for place, folders_there, names in os.walk(path):  # links to folders are not followed
        folders_there.sort()
        for name in sorted(names):
            if stat_regular(Path(place, name)) is not None:
                yield Path(place, name)


def _digest(
    params: Mapping[str, str], values: Any, tags: Mapping[str, str], files: Mapping[str, Path]
) -> str:
    """Returns a hash of all that is sent; files count by size and time of change."""
    found = hashlib.sha256(json.dumps([params, tags]).encode())
    for value in values:
        found.update(repr(value).encode(errors="replace"))
    for name, path in files.items():
        with contextlib.suppress(OSError):
            known = path.stat()
            found.update(f"{name}\0{known.st_size}\0{known.st_mtime_ns}\n".encode(errors="replace"))
    return found.hexdigest()[:16]
