"""The commits of a git repository in their order: which run comes before which."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from traceml.agent.git import Git

TIMEOUT_S = 20.0
MAX_COMMITS = 500_000
_LINE_BYTES = 3 * 41  # a commit and, of a merge, its parents


@dataclass(frozen=True, slots=True)
class CommitHistory:
    """The commits that a repository's HEAD is made of."""

    folder: Path
    places: dict[str, int]
    """Of each commit; what a commit is based on has a smaller one."""
    _parents: dict[str, tuple[str, ...]]
    """The parents of each commit, the one that was merged into first; the newest commit first."""
    _git: Git

    @classmethod
    def around(cls, folder: Path) -> CommitHistory | None:
        """Returns the history of the repository around a folder; `None` where there is none."""
        ends_s = time.monotonic() + TIMEOUT_S
        git = Git(folder, lambda: ends_s - time.monotonic())
        words = ("rev-list", "--topo-order", "--parents", f"--max-count={MAX_COMMITS}", "HEAD")
        found = git.ask_bytes(*words, most=MAX_COMMITS * _LINE_BYTES)
        lines = found[0].decode("ascii", "replace").splitlines() if found else []
        parents = {commit: tuple(of) for commit, *of in map(str.split, lines)}
        if not parents:
            return None
        return cls(folder, {name: -place for place, name in enumerate(parents)}, parents, git)

    def along(self, commits: Iterable[str | None]) -> CommitHistory:
        """Returns the history of a single line of commits: from HEAD back, at each merge to one
        parent.

        At each merge it follows the parent with the most of `commits` on its way, else the first
        parent. A commit on the line contains all that come before it, so a change between two of
        them was made between them. Of two merged branches neither contains the other.
        """
        wanted, counts, chosen = set(commits), dict[str, int](), dict[str, str]()
        for commit in reversed(self._parents):
            known = [each for each in self._parents[commit] if each in counts]
            if known:
                chosen[commit] = max(known, key=counts.__getitem__)
            before = counts[chosen[commit]] if known else 0
            counts[commit] = before + (commit in wanted)
        line = [next(iter(self._parents))]
        while line[-1] in chosen:
            line.append(chosen[line[-1]])
        return replace(self, places={name: -place for place, name in enumerate(line)})

    def is_shallow(self) -> bool:
        """Returns whether the clone was made without the older commits."""
        return self._git.ask("rev-parse", "--is-shallow-repository") == "true"

    def knows_any(self, commits: Iterable[str | None]) -> bool:
        """Returns whether one of these commits is among them."""
        return any(commit in self.places for commit in commits if commit is not None)

    def subjects(self, commits: Iterable[str | None]) -> dict[str, str]:
        """Returns the first lines of the messages of those commits that are among these."""
        known = [each for each in dict.fromkeys(commits) if each in self.places]
        if not known:
            return {}
        words = ("log", "--no-walk=unsorted", "--no-show-signature", "--format=%H %s")
        found = self._git.ask(*words, *map(str, known)) or ""
        told = (line.partition(" ") for line in found.split("\n"))
        return {commit: subject for commit, _, subject in told if commit}

    def between(self, before: str | None, after: str | None) -> tuple[str, ...] | None:
        """Returns the commits that are in the history of `after` and not in that of `before`, but
        for `after` itself, the oldest first; `None` where git does not know."""
        if before is None or after is None:
            return None
        if before == after:
            return ()
        words = ("rev-list", "--topo-order", "--reverse", after, f"^{before}")
        found = self._git.ask(*words)
        if found is None:
            return None
        return tuple(commit for commit in found.split() if commit != after)
