"""Records the version of the code: the commit, and the uncommitted changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from traceml.agent.git import Git
from traceml.model.lineage import ChangedFile, Changes, Code
from traceml.model.secrets import masked_text, without_credentials

MAX_DIFF_BYTES = 256 << 10
"""More than people change by hand between two runs."""
MAX_FILES = 100
"""Names of files in the summary; further ones are counted."""
SOURCES = frozenset(
    [
        *(".py", ".pyx", ".pyi", ".ipynb", ".sh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h"),
        *(".hpp", ".rs", ".yaml", ".yml", ".toml", ".cfg", ".ini"),
    ]
)
"""Files that may change how a script trains."""

_PLAIN_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "HEAD")


def look_at_code(
    folder: Path, logs_folder: Path, left_s: Callable[[], float]
) -> tuple[Code | None, str]:
    """Returns the repository of a folder, and the diff of its uncommitted changes.

    `None` without a repository or git. Our own logs folder does not count as source.
    """
    root = Git(folder, left_s).ask("rev-parse", "--show-toplevel")
    if not root:
        return None, ""
    git = Git(Path(root), left_s)
    commit = git.ask("rev-parse", "--verify", "HEAD^{commit}")
    branch = git.ask("symbolic-ref", "--short", "HEAD")
    dirty, changes, diff = None, None, ""
    if commit:
        with git.with_own_index() as own:
            numbers = own.ask("diff", "--numstat", "-z", *_PLAIN_DIFF)
            dirty = None if numbers is None else bool(numbers)
            changes, diff = _changes(own, numbers) if numbers else (None, "")
    return Code(
        repository=root,
        remote=_remote(git),
        commit=commit,
        branch=branch,
        dirty=dirty,
        changes=changes,
        untracked=_untracked(git, Path(root), logs_folder),
    ), diff


def _remote(git: Git) -> str | None:
    """Returns the URL of `origin`, or else of the first remote."""
    names = (git.ask("remote") or "").split()
    if not names:
        return None
    name = "origin" if "origin" in names else names[0]
    url = git.ask("config", "--get", f"remote.{name}.url")
    return without_credentials(url) if url else None


def _changes(git: Git, numbers: str) -> tuple[Changes | None, str]:
    answer = git.ask_bytes("diff", *_PLAIN_DIFF, most=MAX_DIFF_BYTES)
    if answer is None:
        return None, ""
    text = answer[0].decode(errors="replace")
    diff = masked_text(text)
    files = [_changed_file(line) for line in numbers.split("\0") if line.count("\t") >= 2]
    return Changes(
        sha256=hashlib.sha256(diff.encode()).hexdigest(),
        files=tuple(files[:MAX_FILES]),
        file_count=len(files),
        added=sum(file.added or 0 for file in files),
        removed=sum(file.removed or 0 for file in files),
        truncated=answer[1],
        masked=diff != text,
    ), diff


def _changed_file(line: str) -> ChangedFile:
    """Returns one line of `git diff --numstat`; a binary file has dashes for its numbers."""
    added, removed, path = line.split("\t", 2)
    if not added.isdecimal() or not removed.isdecimal():
        return ChangedFile(path)
    return ChangedFile(path, int(added), int(removed))


def _untracked(git: Git, root: Path, logs_folder: Path) -> tuple[str, ...] | None:
    listed = git.ask("ls-files", "--others", "--exclude-standard", "-z")
    if listed is None:
        return None
    sources = sorted(
        path
        for path in listed.split("\0")
        if Path(path).suffix in SOURCES and logs_folder not in (root / path).parents
    )
    return tuple(sources[:MAX_FILES])
