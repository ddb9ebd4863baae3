"""Checks commits out into temporary git worktrees, and removes these again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from traceml.model.errors import UsageError

WORKTREE = "WORKTREE"
"""Stands for the user's own working tree, with what is not committed."""
_OPTIONS = (
    # A hook of the repository may expect to run in the user's own working tree.
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "advice.detachedHead=false"),
    # Jobs in containers own no file of the checkout. Whoever benchmarks its code runs it anyway.
    *("-c", "safe.directory=*"),
)

_OF_ONE_REPOSITORY = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
)
"""What git sets for its hooks: with it a worktree would be checked out into the user's index."""


def without_repository(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without the variables that name a repository, which git sets for its
    hooks."""
    return {name: said for name, said in environment.items() if name not in _OF_ONE_REPOSITORY}


@dataclass(frozen=True, slots=True)
class Checkout:
    """A version of the code in a folder."""

    label: str
    """What people call it: `main (1a2b3c4)`."""
    folder: Path
    """Where the command runs: the counterpart of the user's current folder."""
    root: Path | None = None
    """The top of a temporary worktree; `None` for the user's own."""
    commit: str | None = None
    """`None` for the user's own working tree."""

    @property
    def import_path(self) -> Path | None:
        """The folder to import the code from: else an editable install of the user's own working
        tree would be measured on both sides."""
        if self.root is None:
            return None
        source = self.root / "src"
        return source if source.is_dir() else self.root


class Repository:
    """The git repository around a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError where there is no git, or no repository."""
        self._folder = folder
        if shutil.which("git") is None:
            raise UsageError(
                "there is no git on this machine, and --a-ref and --b-ref need it; install it, or "
                "compare two commands with --a and --b alone"
            )
        self._root = Path(self._ask("rev-parse", "--show-toplevel", otherwise=self._no_repository))

    def _no_repository(self, said: str) -> UsageError:
        return UsageError(
            f"{self._folder} is in no git repository with a working tree ({said}), and --a-ref and "
            "--b-ref need one; call traceml bench inside it, or leave the refs out"
        )

    def commit(self, ref: str) -> str:
        """Returns the full commit that a branch, tag or commit means; raises UsageError."""

        def unknown(said: str) -> UsageError:
            return UsageError(
                f"git knows no commit {ref!r} here ({said}); expected a branch, a tag or a commit; "
                "in CI, fetch the whole history first (fetch-depth: 0, GIT_DEPTH: 0)"
            )

        words = ("rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
        return self._ask(*words, otherwise=unknown)

    def changed_files(self) -> int:
        """Returns how many files of the user's working tree differ from its commit."""
        return len(self._ask("status", "--porcelain", "--untracked-files=no").splitlines())

    @contextmanager
    def checked_out(self, ref: str) -> Iterator[Checkout]:
        """Checks a commit out into a temporary worktree, which is removed at the end."""
        if ref == WORKTREE:
            yield Checkout("the working tree", self._folder)
            return
        commit = self.commit(ref)
        short = commit[:7]
        label = short if commit.startswith(ref) else f"{ref} ({short})"
        parent = Path(tempfile.mkdtemp(prefix="traceml-bench-"))
        root = parent / self._root.name
        try:
            self._ask("worktree", "add", "--quiet", "--detach", str(root), commit)
            folder = root / self._folder.resolve().relative_to(self._root.resolve())
            if not folder.is_dir():
                raise UsageError(
                    f"{label} has no folder {folder.relative_to(root)}, in which the command is to "
                    "run; call traceml bench in a folder that both commits have"
                )
            yield Checkout(label, folder, root, commit)
        finally:
            # Not `prune`: the user may have other worktrees whose folders are absent just now.
            with suppress(UsageError):
                self._ask("worktree", "remove", "--force", str(root))
            shutil.rmtree(parent, ignore_errors=True)

    def _ask(self, *words: str, otherwise: Callable[[str], UsageError] | None = None) -> str:
        """Returns what git prints; raises UsageError, or what `otherwise` makes of git's words."""
        done = subprocess.run(
            ["git", *_OPTIONS, *words],
            cwd=self._folder,
            env=without_repository(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.strip()
        said = _reason(done.stderr)
        if otherwise is not None:
            raise otherwise(said)
        raise UsageError(f"git {' '.join(words[:2])} failed: {said}")


def _reason(stderr: str) -> str:
    """Returns git's reason: what stands behind its first `fatal:`, before its advice."""
    lines = stderr.strip().splitlines()
    fatal = [line for line in lines if line.startswith("fatal:")]
    return (fatal or lines[-1:] or ["it says nothing"])[0]
