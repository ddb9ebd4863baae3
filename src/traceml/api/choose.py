"""Finds the runs of a group: by path, by name, by a pattern of names, or by what they ran with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from traceml.compare import selection
from traceml.model.errors import RunNotFound, UsageError
from traceml.summaries.read import FILE_NAME, locate, read_labels

_PATTERN = frozenset("*?[")


def choose(words: Sequence[str], logs_dir: Path) -> list[Path]:
    """The summary files that the words stand for, each once, in their order."""
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
        found = list(_by_expression(word, logs_dir))
    if not found:
        raise RunNotFound(
            f"no run matches {word!r}: neither a path nor the name of a run under {logs_dir}, nor "
            "what one was run with (key=value); traceml compare --help shows the forms"
        )
    yield from found


def _by_pattern(word: str, logs_dir: Path) -> Iterator[Path]:
    """Files, run folders, and names of runs, in the order of their names."""
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
        files = [path / FILE_NAME if path.is_dir() else path for path in found]
        files = [path for path in files if path.is_file() and path.suffix == ".json"]
        if files:
            yield from map(_in_its_folder, files)
            return


def _by_expression(word: str, logs_dir: Path) -> Iterator[Path]:
    wanted = selection.parse(word)
    for path in sorted(logs_dir.glob(f"*/{FILE_NAME}")):
        labels = read_labels(path)
        if labels is not None and selection.matches(labels, wanted):
            yield _in_its_folder(path)


def _in_its_folder(path: Path) -> Path:
    """The path with its folder's real name: a run may be called by it."""
    return path.parent.resolve() / path.name
