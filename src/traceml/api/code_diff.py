"""Shows what changed in the code between two runs, where the repository is at hand."""

from __future__ import annotations

import re
import time
from pathlib import Path

from traceml.agent.git import Git
from traceml.model.quantities import memory
from traceml.summaries.record import Summary

MOST_S = 5.0
"""How long git may take altogether."""
MOST_BYTES = 8 << 20
MOST_STAT_FILES = 30
STAT_COLUMNS = 80
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
"""What a summary says goes to git as it is, so it has to be a commit and nothing else."""


def code_stat(a: Summary, b: Summary, folder: Path) -> str | None:
    """`git diff --stat` between the commits of two runs.

    `None` where either is unknown, or unknown to the repository of this folder.
    """
    width, files = f"--stat={STAT_COLUMNS}", f"--stat-count={MOST_STAT_FILES}"
    answer = _ask(a, b, folder, width, files)
    return None if answer is None else answer[0]


def code_diff(a: Summary, b: Summary, folder: Path) -> str | None:
    """The whole difference between the commits of two runs; `None` as for `code_stat`."""
    answer = _ask(a, b, folder, "--patch")
    if answer is None:
        return None
    text, is_more = answer
    return f"{text}\n… and more: only the first {memory(MOST_BYTES)} are shown" if is_more else text


def _ask(a: Summary, b: Summary, folder: Path, *how: str) -> tuple[str, bool] | None:
    commits = [_commit(a), _commit(b)]
    if None in commits:
        return None
    until = time.monotonic() + MOST_S
    git = Git(folder, lambda: until - time.monotonic())
    plain = ("--no-ext-diff", "--no-textconv", "--no-color")
    words = ("diff", *plain, *how, *(str(commit) for commit in commits), "--")
    answer = git.ask_bytes(*words, most=MOST_BYTES)
    return None if answer is None else (answer[0].decode(errors="replace"), answer[1])


def _commit(summary: Summary) -> str | None:
    code = None if summary.lineage is None else summary.lineage.code
    if code is None or code.commit is None or not _COMMIT.fullmatch(code.commit):
        return None
    return code.commit
