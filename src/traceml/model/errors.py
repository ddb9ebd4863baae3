"""The one tree of exceptions that a surface prints as a message instead of a traceback, and the
near matches that such a message names."""

from __future__ import annotations

from collections.abc import Iterable

_MIN_SIMILARITY = 0.7
"""Of difflib's ratio: `runn` and `run`, `regresion` and `regression`; not `tag` and `run`."""
_MIN_BEGINNING = 3
"""Letters that a beginning needs to be one: `--nproc` for `--nproc-per-node`."""


class TraceMLError(Exception):
    """Something a user can act on; the message says what was found, expected, and what to do."""


class UsageError(TraceMLError):
    """The command line or an argument cannot be carried out as asked."""


class RunNotFound(TraceMLError):
    """A path or name that leads to no run."""


class UnreadableRecords(TraceMLError):
    """A ring or record file that is not ours, is damaged, or is of a newer format."""


class UnreadableSummary(TraceMLError):
    """A file that was passed as a run summary and is none."""


class UnreadableArtifact(TraceMLError):
    """A logged file cannot be read as what it is; the text says why, without the file's name."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word nearest to another one; `None` where none is near."""
    from difflib import get_close_matches  # late: only errors need it

    by_small = {each.lower(): each for each in known}
    small = word.lower()
    found = get_close_matches(small, by_small, n=1, cutoff=_MIN_SIMILARITY)
    if not found and len(small.strip("-")) >= _MIN_BEGINNING:
        found = [each for each in by_small if each.startswith(small)]
    return by_small[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean X?)` for an error's text; nothing where no known word is near."""
    found = nearest(word, known)
    return "" if found is None else f" (did you mean {found}?)"
