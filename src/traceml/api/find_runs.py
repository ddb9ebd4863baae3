"""Finds runs by what a user says (path, name, pattern or parameters); shows or rebuilds a
summary."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from traceml.compare import selection
from traceml.compare.record import to_json
from traceml.model.errors import RunNotFound, UsageError
from traceml.store import folder as folders
from traceml.store.query_language import QueryError
from traceml.store.tags import RunTags, change_tags
from traceml.summaries.read import FILE_NAME, locate, read_labels, read_summary, runs_there
from traceml.summaries.record import Summary
from traceml.text.markdown import summary_markdown
from traceml.text.summary import summary_text


def view(run: str, logs_dir: Path, form: str = "text") -> str:
    """Returns a finished run's summary as text, JSON or markdown."""
    return _in_form(read_summary(locate(run, logs_dir), follow_links=True), form)


def _in_form(summary: Summary, form: str) -> str:
    """Returns it without the end of its last line, which `print` writes."""
    if form == "json":
        return to_json(summary).decode().rstrip("\n")
    text = summary_markdown(summary) if form == "markdown" else summary_text(summary)
    return text.rstrip("\n")


def recover(run: str, logs_dir: Path, others: Sequence[str] = (), form: str = "text") -> str:
    """Rebuilds the summary of a run whose agent died, from its folder and those of its other nodes;
    returns it as text, JSON or markdown."""
    from traceml.agent.close import recover as rebuild

    found = list(dict.fromkeys(find_folder(each, logs_dir) for each in (run, *others)))
    for folder in found:
        if folders.is_going_on(folder):
            raise UsageError(
                f"the run {folder.name!r} is still going on ({folder}): its agent writes the "
                "summary when it ends; recover is for runs whose agent has died"
            )
    held = [folders.hold(folder) for folder in found]
    try:
        rebuilt = rebuild(found[0], found[1:])
        return (rebuilt.text or "").rstrip("\n") if form == "text" else _in_form(rebuilt, form)
    except OSError as error:
        raise UsageError(
            f"the summary of {found[0]} cannot be written ({error}); "
            "make room, or make the folder writable, and recover again: the records are kept"
        ) from error
    finally:
        for descriptor in held:
            if descriptor is not None:
                os.close(descriptor)


def find_folder(run: str, logs_dir: Path) -> Path:
    """Returns the run folder for a path or a name."""
    try:
        for folder in (Path(run), logs_dir / run):
            if (folder / folders.MANIFEST).is_file():
                return folder.absolute()
    except (OSError, ValueError) as error:  # no permission, a name that is too long
        raise RunNotFound(
            f"{run!r} cannot be looked up ({error}); expected a run folder or the name of a run "
            f"under {logs_dir}; check the path"
        ) from error
    raise RunNotFound(
        f"there is no run {run!r}: neither {Path(run)} nor {logs_dir / run} holds a "
        f"{folders.MANIFEST}; pass a run folder, or a run's name with --logs-dir"
        f"{runs_there(logs_dir, run, folders.MANIFEST)}"
    )


def tag_run(
    run: str, logs_dir: Path, add: Sequence[str], remove: Sequence[str], note: str | None
) -> RunTags:
    """Changes the tags and the note of a run, finished or not; returns what holds then."""
    folder = _any_folder(run, logs_dir)
    return change_tags(folder, add, remove, note, folders.user_name())


def _any_folder(run: str, logs_dir: Path) -> Path:
    """Returns the folder of a run; it may hold nothing but a summary."""
    try:
        return find_folder(run, logs_dir)
    except RunNotFound:
        return locate(run, logs_dir).parent.absolute()


_PATTERN = frozenset("*?[")


def choose_summaries(words: Sequence[str], logs_dir: Path) -> list[Path]:
    """Returns the summary files that the words select, each once, in their order."""
    return list(dict.fromkeys(path for word in words for path in _chosen(word, logs_dir)))


def _chosen(word: str, logs_dir: Path) -> Iterator[Path]:
    try:
        yield _in_its_folder(locate(word, logs_dir))
        return
    except RunNotFound:
        if not _PATTERN & set(word) and not selection.is_expression(word):
            raise
    found = list(_by_pattern(word, logs_dir) if _PATTERN & set(word) else ())
    if not found and selection.is_expression(word):
        found = _by_expression(word, logs_dir)
    if not found:
        raise RunNotFound(
            f"no run matches {word!r}: neither a path nor the name of a run under {logs_dir}, nor "
            "what one was run with (key=value, or a filter); traceml compare --help shows the forms"
        )
    yield from found


def _by_pattern(word: str, logs_dir: Path) -> Iterator[Path]:
    """Yields files, run folders, and names of runs, by name."""
    pattern = Path(word)
    places = (
        (Path(pattern.anchor or "."), logs_dir) if not pattern.anchor else (Path(pattern.anchor),)
    )
    inner = str(pattern.relative_to(pattern.anchor)) if pattern.anchor else word
    for place in places:
        try:
            found = sorted(place.glob(inner))
        except (ValueError, NotImplementedError) as error:
            raise UsageError(
                f"{word!r} is no pattern of names: {error}; write for example 'baseline-*'"
            ) from None
        files = [path / FILE_NAME if os.path.isdir(path) else path for path in found]  # noqa: PTH112
        # Not `Path.is_file`, which raises where we may not look: runs of others are left out.
        files = [path for path in files if os.path.isfile(path) and path.suffix == ".json"]  # noqa: PTH113
        if files:
            yield from map(_in_its_folder, files)
            return


def _by_expression(word: str, logs_dir: Path) -> list[Path]:
    """Returns the summaries of the runs that a filter lets through, by name.

    The short form of a filter may also name what the index has no column of, such as
    `lineage.data.version=3`. Raises QueryError where a filter names what no run has, and
    RunNotFound where its short form does.
    """
    if not selection.is_short(word):
        return _by_filter(word, logs_dir)
    try:
        return _by_filter(selection.as_filter(word), logs_dir) or _by_labels(word, logs_dir)
    except QueryError as error:
        found = _by_labels(word, logs_dir)
        if not found:
            raise RunNotFound(f"no run matches {word!r}: {error.problem}") from None
        return found


def _by_filter(text: str, logs_dir: Path) -> list[Path]:
    # Late: most comparisons are of runs by name, and need no index.
    from traceml.api.query_runs import runs

    names = sorted(runs(text, logs_dir=logs_dir).names) if logs_dir.is_dir() else []
    files = (logs_dir / name / FILE_NAME for name in names)
    return [_in_its_folder(path) for path in files if os.path.isfile(path)]  # noqa: PTH113


def _by_labels(word: str, logs_dir: Path) -> list[Path]:
    """Returns the summaries that hold all these values in `params`, `meta` or `lineage`."""
    wanted = selection.parse(word)
    found = []
    for path in sorted(logs_dir.glob(f"*/{FILE_NAME}")):
        labels = read_labels(path)
        if labels is not None and selection.matches(labels, wanted):
            found.append(_in_its_folder(path))
    return found


def _in_its_folder(path: Path) -> Path:
    """Returns the path with its folder's real name, after which a run may be called."""
    return path.parent.resolve() / path.name
