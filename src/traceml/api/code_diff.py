"""Shows what changed in the code between two runs, from repositories and run folders.

Commits are compared by a repository: that of this folder, or one that a run recorded. Uncommitted
changes are in each run's folder as `diff.patch`, and the two patches are compared.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceml.agent.git import Git
from traceml.model.lineage import Code
from traceml.model.quantities import memory
from traceml.store.lineage import DIFF
from traceml.store.regular_files import stat_regular
from traceml.summaries.record import Summary

TIMEOUT_S = 5.0
"""For git altogether."""
MAX_BYTES = 8 << 20
MAX_STAT_FILES = 30
STAT_COLUMNS = 80
UNCOMMITTED = "not committed:"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
"""The form of a commit: text from a summary is passed to git and must be nothing else."""
_PLAIN = ("--no-ext-diff", "--no-textconv", "--no-color")
_STAT = (f"--stat={STAT_COLUMNS}", f"--stat-count={MAX_STAT_FILES}")


@dataclass(frozen=True, slots=True)
class Version:
    """The code of one run: what its summary says, and the folder that may hold its patch."""

    code: Code | None
    run_folder: Path

    @staticmethod
    def of(summary: Summary, path: Path) -> Version:
        """Returns the version for a summary that was read from a file."""
        return Version(summary.lineage.code if summary.lineage else None, path.parent)

    @property
    def commit(self) -> str | None:
        """The commit; `None` where the recorded text is none."""
        commit = self.code.commit if self.code else None
        return commit if commit is not None and _COMMIT.fullmatch(commit) else None

    @property
    def patch(self) -> Path | None:
        """The uncommitted changes; `None` where they were not stored."""
        changes = self.code.changes if self.code else None
        path = self.run_folder / DIFF
        return path if changes is not None and stat_regular(path) is not None else None

    @property
    def is_whole(self) -> bool:
        """Whether commit and patch describe the code completely."""
        return self.commit is not None and (
            self.patch is not None or (self.code is not None and self.code.dirty is False)
        )

    def is_same(self, other: Version) -> bool:
        """Returns whether both are recorded as the same code."""
        return (self.commit, self._hash) == (other.commit, other._hash)

    @property
    def _hash(self) -> str | None:
        changes = self.code.changes if self.code else None
        return changes.sha256 if changes else None


def differing(a: Sequence[Version], b: Sequence[Version]) -> tuple[Version, Version]:
    """Returns a version of each side, two different ones if possible."""
    pairs = ((left, right) for left in a for right in b if not left.is_same(right))
    return next(pairs, (a[0], b[0]))


def code_stat(a: Version, b: Version, folder: Path) -> str | None:
    """Returns `git diff --stat` between the code of two runs; empty where nothing differs.

    `None` where the code is not known, or no repository here has it.
    """
    return _joined(_parts(a, b, folder, _STAT))


def code_diff(a: Version, b: Version, folder: Path) -> str | None:
    """Returns the whole difference between the code of two runs; `None` as for `code_stat`."""
    return _joined(_parts(a, b, folder, ("--patch",)))


def _joined(parts: Iterator[str | None]) -> str | None:
    """Returns the known parts joined; `None` where none is known."""
    found = list(parts)
    known = [part for part in found if part]
    if known:
        return "\n".join(known)
    return "" if found and None not in found else None


def _parts(a: Version, b: Version, folder: Path, how: Sequence[str]) -> Iterator[str | None]:
    until_s = time.monotonic() + TIMEOUT_S

    def left_s() -> float:
        return until_s - time.monotonic()

    yield _between_commits(a, b, folder, how, left_s)
    yield _between_patches(a, b, how, left_s)


def _between_commits(
    a: Version, b: Version, folder: Path, how: Sequence[str], left_s: Callable[[], float]
) -> str | None:
    if a.commit is None or b.commit is None:
        return None
    if a.commit == b.commit:
        return ""
    words = ("diff", *_PLAIN, *how, a.commit, b.commit, "--")
    for repository in _repositories(a, b, folder):
        answer = Git(repository, left_s).ask_bytes(*words, most=MAX_BYTES)
        if answer is not None:
            return _text(answer)
    return None


def _repositories(a: Version, b: Version, folder: Path) -> Iterator[Path]:
    """Yields the current folder first, then the folders of the runs' code."""
    recorded = (each.code.repository for each in (a, b) if each.code is not None)
    yield from dict.fromkeys([folder, *(Path(place) for place in recorded if place)])


def _between_patches(
    a: Version, b: Version, how: Sequence[str], left_s: Callable[[], float]
) -> str | None:
    if a.patch is None and b.patch is None:
        return "" if a.is_whole and b.is_whole else None
    if not (a.is_whole and b.is_whole):
        return None
    around = Path(os.path.commonpath([a.run_folder, b.run_folder]))
    names = [str(each.patch.relative_to(around)) if each.patch else os.devnull for each in (a, b)]
    words = ("diff", "--no-index", *_PLAIN, *how, "--", *names)
    answer = Git(around, left_s).ask_bytes(*words, most=MAX_BYTES, answers=(0, 1))
    if answer is None:
        return None
    text = _text(answer)
    return f"{UNCOMMITTED}\n{text}" if text else ""


def _text(answer: tuple[bytes, bool]) -> str:
    text = answer[0].decode(errors="replace")
    if not answer[1]:
        return text
    return f"{text}\n… and more: only the first {memory(MAX_BYTES)} are shown"
