"""The one tree of exceptions that a surface prints as a message instead of a traceback, and the
near matches that such a message names."""

from __future__ import annotations

from collections.abc import Iterable

_MIN_SIMILARITY = 0.7
"""Of difflib's ratio: `runn` and `run`, `regresion` and `regression`; not `tag` and `run`."""
_SLIP_SIMILARITY = 0.85
"""Of the same: `stpe_time` and `step_time`; not `reward` and `forward`."""
_MIN_PART = 3
"""Letters that a beginning or an end needs to be one: `--nproc` for `--nproc-per-node`."""
_SEPARATORS = "/._"


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


def near_names(word: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Returns the known names that are written much like a word, then those of which a part
    begins so (`loss` and `los` of `val/loss`, `step_time` of `step_time_ms`), the shortest first.

    Small and capital letters are alike.
    """
    from difflib import get_close_matches  # late: only errors need it

    by_small: dict[str, list[str]] = {}
    for name in known:
        by_small.setdefault(name.casefold(), []).append(name)
    small = word.casefold()
    alike = get_close_matches(small, by_small, limit, cutoff=_MIN_SIMILARITY)
    parts: list[str] = []
    if len(small.strip("-")) >= _MIN_PART:
        ends = tuple(f"{sign}{small}" for sign in _SEPARATORS)
        parts = [name for name in by_small if any(end in name for end in ends)]
        parts += [name for name in by_small if name.startswith(small)]
    found = dict.fromkeys((*alike, *sorted(parts, key=len)))
    return [name for small in found for name in by_small[small]][:limit]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word nearest to another one; `None` where none is near."""
    return next(iter(near_names(word, known, 1)), None)


def misspelt(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word that another one can only be a slip of; `None` where it may be a word
    of its own, such as `reward` beside `forward`."""
    from difflib import get_close_matches  # late: only errors need it

    return next(iter(get_close_matches(word, list(known), 1, cutoff=_SLIP_SIMILARITY)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean X?)` for an error's text; nothing where no known word is near."""
    found = nearest(word, known)
    return "" if found is None else f" (did you mean {found}?)"
